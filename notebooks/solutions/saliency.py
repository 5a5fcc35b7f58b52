"""Solutions of the exercises of 12_saliency, in the names of the lesson."""

# Exercise 1
answer_1 = int(result.importance[:, 0].argmin())

# Exercise 2
answer_2 = np.mean(top_tokens("first_order") == top_tokens("exact"))

# Exercise 3
answer_3 = [5, 4, 0, 0]  # 5·1 = 5; 5·0.75 = 3.75 → 4; 5·0.25 = 1.25 → 2, not above 2; negative → 0

# Exercise 4
answer_4 = (steady / steady.max())[mask].sum() / np.log2(2 + mask.sum())

# Exercise 5
answer_5 = int(np.sum(score_of("tuned") > score_of("base")))
