"""Solutions of the exercises of 20_head_words, in the names of the lesson."""

# Exercise 1
answer_1 = (same_sign & near & different).sum() / (same_sign & different).sum()

# Exercise 2
answer_2 = (real_pairs - chance_pairs) / real_pairs

# Exercise 3
answer_3 = int(test.sort_values("holm_p").instruction_verbs.iloc[0])
