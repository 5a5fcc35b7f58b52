"""Solutions of the exercises of 06_patching, in the names of the lesson."""

# Exercise 1
answer_1 = next(layer for layer in range(20, model.n_layers) if carried(layer, country) < 0.5)

# Exercise 2
answer_2 = 1 - left_of[29 - 20, 1]

# Exercise 3
answer_3 = len(circuit.smallest(0.8))
