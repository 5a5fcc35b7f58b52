"""Solutions of the exercises of 04_induction, in the names of the lesson."""

# Before you look
guess_1 = 2

# Exercise 1
answer_1 = pattern[rows, rows - n + 1].mean()

# Exercise 2
answer_2 = max("qkv", key=carried)

# Exercise 3
# The latest place of the last token among those before it; what stands behind that place.
answer_3 = lambda tokens: next(
    (tokens[place + 1] for place in range(len(tokens) - 2, -1, -1) if tokens[place] == tokens[-1]), None
)
