"""A text to learn, as numbers of characters."""

import argparse
import random

import torch

TEXT = f"{random.__doc__}{argparse.__doc__}"
ALPHABET = sorted(set(TEXT))
IDS = torch.tensor([ALPHABET.index(character) for character in TEXT])
