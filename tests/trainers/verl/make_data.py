"""Makes the prompts of the verl run: make_data.py FILE.parquet"""

import sys

import pandas

ROWS = [
    {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"What is {i} plus {i + 1}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * i + 1)},
        "extra_info": {"index": i},
    }
    for i in range(64)
]
pandas.DataFrame(ROWS).to_parquet(sys.argv[1])
