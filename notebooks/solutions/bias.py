"""Solutions of the exercises of 13_bias, in the names of the lesson."""

# Exercise 1
answer_1 = 92.79 * min(68.55, 100 - 68.55) / 50

# Exercise 2
answer_2 = int((neurons.cosine > neurons.chance[:, None]).sum())

# Exercise 3
answer_3 = (100 - rows["LEACE"].domain("gender").ss) / 50
