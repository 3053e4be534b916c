import pytest
from torch.utils.data import DataLoader, Dataset

from revisit.errors import UserError


class Broken(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise UserError("mask 7.png has ids 30: expected 0 to 20, and 255 for void")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_users_mistake_is_one_line_wherever_it_is_found(num_workers):
    with pytest.raises(UserError) as caught:
        next(iter(DataLoader(Broken(), num_workers=num_workers)))
    assert str(caught.value) == "mask 7.png has ids 30: expected 0 to 20, and 255 for void"
