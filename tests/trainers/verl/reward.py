"""The reward of the verl run: rewards differ within a group, so that the loss is not zero."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return len(set(solution_str)) / 100.0
