"""Solutions of the exercises of 22_mixture_of_depths, in the names of the lesson."""

# Exercise 1
answer_1 = hit[:-1, ~hit[-1]].any(axis=0).mean()

# Exercise 2
answer_2 = (base_loss - before["equal"].mean()) / (base_loss - after["router"].mean())

# Exercise 3
answer_3 = (found.n_layers - 1 - found.exit_layer)[found.exit_layer < found.n_layers - 1].mean()
