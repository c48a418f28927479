"""
X
=
"""
print(1)
