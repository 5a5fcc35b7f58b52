"""Solutions of the exercises of 11_steering, in the names of the lesson."""

# Before you look
guess_1 = 20

# Exercise 1
answer_1 = (1 + np.sum(sweep.random_probability[2] >= sweep.word_probability[2])) / (1 + 19)

# Exercise 2
# Late, where the country has not been read yet, and a little less than a gap.
answer_2 = lambda: steer(model, found.direction("Tokyo"), layer=22, strength=0.8 * found.gap[found.index("Tokyo")])

# Exercise 3
answer_3 = lost[np.eye(8, dtype=bool)].mean() - lost[~np.eye(8, dtype=bool)].mean()
