"""Solutions of the exercises of 02_logit_lens, in the names of the lesson."""

# Exercise 1
answer_1 = int((names.target_rank[:, -1] == 0).argmax())

# Exercise 2
answer_2 = np.mean(depth["indirect objects"] >= 3)

# Exercise 3
answer_3 = kl["logit lens"][3] / kl["tuned lens"][3]
