"""The numbers that the papers report, as data.

`relaysum.csv`: Vogels et al., RelaySum for Decentralized Deep Learning on Heterogeneous Data, 2021 (arXiv:2110.04175).
Tables are copied from the paper; the numbers of figures are those stored in the outputs of the authors' notebooks, or,
where the note says so, were computed with the authors' scripts.

`thesis.csv`: Bohl, Exploring Distributed Learning Algorithms with Communication Optimization, 2022: its tables.

`thesis_curves.csv`: the test accuracy of each of the 200 epochs of the thesis's 15 final runs, from the logs in the
author's repository (Figures 5.1 to 5.3 are drawn from them). Accuracies there are fractions.

Columns of the first two: `paper,item,algorithm,topology,setting,metric,value,unit,spread,note`. A number's key is
'algorithm|topology|setting' within its item.
"""
