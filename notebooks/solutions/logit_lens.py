"""Solutions of the exercises of 02_logit_lens, in the names of the lesson."""

# Before you look
guess_1 = 12

# Exercise 1
answer_1 = int(np.diff(ranks.mean(axis=0)).argmin())

# Exercise 2
answer_2 = np.mean(depth["indirect objects"] >= 3)

# Exercise 3
answer_3 = kl["logit lens"][3] / kl["tuned lens"][3]
