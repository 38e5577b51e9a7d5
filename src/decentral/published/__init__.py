"""The numbers that the papers report, as data.

`papers.csv`: the papers, by the name of their folder in results/ and of their file here.

`relaysum.csv`: Vogels et al., RelaySum for Decentralized Deep Learning on Heterogeneous Data, 2021 (arXiv:2110.04175).
Tables are copied from the paper; the numbers of figures are those stored in the outputs of the authors' notebooks, or,
where the note says so, were computed with the authors' scripts.

`thesis.csv`: Bohl, Exploring Distributed Learning Algorithms with Communication Optimization, 2022: its tables, and the
last epoch of the curves that its Figures 5.1 to 5.3 show.

`thesis_curves.csv`: those curves, the test accuracy of each of the 200 epochs of the thesis's 15 final runs, from the
logs in the author's repository. Accuracies there are fractions.

`bluefog.csv`: Ying et al., BlueFog: Make Decentralized Algorithms Practical for Optimization and Deep Learning, 2021
(arXiv:2111.04287): its tables. Its figures are pictures without numbers.

`wagma.csv`: Li et al., Breaking (Global) Barriers in Parallel Stochastic Optimization with Wait-Avoiding Group
Averaging, IEEE TPDS 32(7), 2021: the numbers that its text gives. Its figures are pictures without numbers.

`flex.csv`: Tyagi and Swany, Flexible Communication for Optimal Distributed Learning over Unpredictable Networks, IEEE
BigData 2023: the accuracies on its slides, and what the formulas on its slides give for some numbers of workers.

`time.csv`, `benchmark.csv`, `churn.csv`: no numbers. They stand for our own studies of who waits for whom, of which
method reaches the target first, and of workers that leave and join, which have a page like a paper's.

Columns of a paper's file: `paper,item,algorithm,topology,setting,metric,value,unit,spread,note`. A number's key is
'algorithm|topology|setting' within its item. A note that begins with 'computed' or 're-run' marks a number that the
paper itself does not say; one that begins with 'not an accuracy', a number that nothing can be compared with.
"""


def key(line: str, setting: str, **values: object) -> str:
    """A number's key: 'algorithm|topology' and a setting such as 'alpha={alpha:g}', filled in; '' without a line.

    A line may have a setting of its own: 'algorithm|topology|setting'.
    """
    whole = line if not line or line.count("|") > 1 else f"{line}|{setting}"
    return whole.format(**values)
