"""Makes the prompts of the NeMo RL run: make_data.py FILE.jsonl"""

import json
import sys

with open(sys.argv[1], "w") as file:
    for i in range(64):
        print(json.dumps({"input": f"What is {i} plus {i + 1}?", "output": str(2 * i + 1)}), file=file)
