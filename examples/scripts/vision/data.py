"""Images of bright squares; the label is the quadrant that the square is in."""

import torch
from torch.utils.data import Dataset

SIZE = 16


class Squares(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 4
        image = torch.rand(1, SIZE, SIZE, generator=torch.Generator().manual_seed(index))
        row, column = 8 * (label // 2), 8 * (label % 2)
        image[0, row + 2 : row + 6, column + 2 : column + 6] += 1
        return image, label
