"""Solutions of the exercises of 05_ablation, in the names of the lesson."""

# Before you look
guess_1 = 5

# Exercise 1
answer_1 = tuple(int(i) for i in np.unravel_index(maps["zero"].of("attn").argmax(), maps["zero"].of("attn").shape))

# Exercise 2
answer_2 = effect(torch.cat([one[1:] for one in outputs]).mean(0), mlp)

# Exercise 3
answer_3 = int(((at_country < trace.clean / 2) & (at_last < trace.clean / 2)).sum())
