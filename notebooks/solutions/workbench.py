"""Solutions of the exercises of 14_workbench, in the names of the lesson."""

# Exercise 1
answer_1 = found[1].prompt_tokens[int((found[1].importance - found[0].importance)[:, 0].argmax())]

# Exercise 2
answer_2 = float(parts[1].share[parts[1].tokens.index(answer_1)] / parts[1].logit)

# Exercise 3
answer_3 = int((tuned.numbers("first_best_layer") > base.numbers("first_best_layer")).sum())
