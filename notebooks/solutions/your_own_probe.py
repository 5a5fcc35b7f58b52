"""Solutions of the exercises of 30_your_own_probe, in the names of the lesson."""

# Exercise 1
answer_1 = np.unravel_index(entropy.values.argmin(), entropy.values.shape)

# Exercise 2
answer_2 = np.log(len(model.tokens(prompt)))

# Exercise 3
answer_3 = mixed.bag_of_words.mean() - apart.bag_of_words.mean()
