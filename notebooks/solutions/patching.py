"""Solutions of the exercises of 06_patching, in the names of the lesson."""

# Exercise 1
answer_1 = np.unravel_index(heads.recovered["head"][:, :, -1].argmax(), (model.n_layers, model.n_heads))

# Exercise 2
answer_2 = 1 - float(lost.recovered["head"][0, 1, -1])

# Exercise 3
answer_3 = len(circuit.smallest(0.8))
