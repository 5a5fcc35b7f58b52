"""Solutions of the exercises of 08_token_decomposition, in the names of the lesson."""

# Before you look
guess_1 = "France"

# Exercise 1
answer_1 = float(against.share[against.tokens.index(" France")] / against.logit)

# Exercise 2
answer_2 = float(split.share[1] / split.share.sum())

# Exercise 3
answer_3 = np.mean([from_the_answer(one) for one in receivers])
