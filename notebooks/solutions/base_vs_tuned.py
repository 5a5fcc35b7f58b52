"""Solutions of the exercises of 21_base_vs_tuned, in the names of the lesson."""

# Exercise 1
answer_1 = 1 - len(A & B) / len(A | B)

# Exercise 2
answer_2 = np.mean(np.linalg.svd(P @ Q.T, compute_uv=False) ** 2)

# Exercise 3
answer_3 = np.maximum.accumulate(np.sort(printed) * [4, 3, 2, 1])[2]  # of 0.0411, the third smallest
