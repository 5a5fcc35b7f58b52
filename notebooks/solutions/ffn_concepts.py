"""Solutions of the exercises of 09_ffn_concepts, in the names of the lesson."""

# Exercise 1
answer_1 = sum(nearest_cosine(5, component) > limit for component in range(20))

# Exercise 2
answer_2 = effects.strongest(1)[0][1] / effects.mlp_effect

# Exercise 3
answer_3 = named - named_random
