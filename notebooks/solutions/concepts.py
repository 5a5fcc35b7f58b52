"""Solutions of the exercises of 10_concepts, in the names of the lesson."""

# Exercise 1
answer_1 = told(discriminant)

# Exercise 2
answer_2 = instruments(name for name, _ in neighbors(tuned, "piano", 10))

# Exercise 3
answer_3 = (jobs[:, 0] - jobs[:, 1]).mean()
