"""Solutions of the exercises of 07_circuits, in the names of the lesson."""

# Exercise 1
# The head stands at place 1 to 8, each as often, and at place $k$ the precision is $1/k$.
answer_1 = np.mean(1 / np.arange(1, 9))

# Exercise 2
answer_2 = sum(pairs[i, j] < 0.5 <= min(pairs[i, i], pairs[j, j]) for i in range(8) for j in range(i))

# Exercise 3
# What a head takes *beside each other head*: what is kept without the other, minus what is kept without both.
# The largest counts.
answer_3 = lambda model, case: {
    "heads": (np.diag(kept(model, case)) - kept(model, case)).max(axis=1).reshape(model.n_layers, -1)
}

# Exercise 4
answer_4 = [divmod(int(answer_3(sealed.model, first)["heads"].argmax()), sealed.model.n_heads)]
