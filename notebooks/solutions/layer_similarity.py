"""Solutions of the exercises of 24_layer_similarity, in the names of the lesson."""

# Exercise 1
answer_1 = 192 * (1 / 0.1 - 1)

# Exercise 2
answer_2 = int((tuned.cka > base.cka)[known, -1].sum())

# Exercise 3
answer_3 = mossa_sections(base, tuned, unseen=True).difference[-1]
