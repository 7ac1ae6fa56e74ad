"""Which algorithm does which matmul: the search against a cuBLASLt made of host memory, which reads descriptors and
addresses as the real one does and has algorithms that are fast, slow, wrong, refused or greedy. The host takes 90 us
to enqueue a product, more than any of them takes the device."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prelude.cuda import kept_choices
from prelude.cuda.cublaslt import CublasLt
from prelude.cuda.matmul_search import MatmulSearch
from torch import Tensor

SLOW, FAST, WRONG, REFUSED, GREEDY = range(5)
SECONDS = {SLOW: 9e-6, FAST: 3e-6, WRONG: 1e-6, REFUSED: 1e-6, GREEDY: 1e-6}


class HostLibrary:
    """cuBLASLt's interface over host memory; ``host`` and ``device`` are the clocks of the two, in seconds."""

    def __init__(self, algorithms: tuple[int, ...] = tuple(SECONDS), version: int = 130000) -> None:
        self.objects: dict[int, dict[str, Any]] = {}
        self.algorithms = algorithms
        self.number = version
        self.host = self.device = 0.0
        self.asked = 0
        self.ran: list[int] = []
        self.known = set(algorithms)

    def __getattr__(self, name: str) -> Callable[..., int]:
        call = getattr(type(self), name.removeprefix("cublasLt"))
        setattr(self, name, lambda *args: call(self, *args))  # which takes attributes, as a library's functions do
        return getattr(self, name)

    def enqueue(self, seconds: float, host: float = 90e-6) -> None:
        self.host += host
        self.device = max(self.host, self.device) + seconds

    def _new(self, into: Any, **values: Any) -> int:
        number = max(self.objects, default=0) + 1
        self.objects[number] = values
        into._obj.value = number
        return 0

    def GetVersion(self) -> int:
        return self.number

    def Create(self, into: Any) -> int:
        return self._new(into)

    def Destroy(self, handle: Any) -> int:
        del self.objects[handle.value]
        return 0

    MatmulDescDestroy = MatrixLayoutDestroy = MatmulPreferenceDestroy = Destroy

    def MatmulDescCreate(self, into: Any, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0), "sums and scales are float32"
        return self._new(into, transposed_a=False)

    def MatmulDescSetAttribute(self, description: Any, attribute: int, value: Any, size: Any) -> int:
        assert (attribute, size.value) == (3, 4)
        self.objects[description.value]["transposed_a"] = value._obj.value == 1
        return 0

    def MatrixLayoutCreate(self, into: Any, kind: int, rows: Any, columns: Any, stride: Any) -> int:
        return self._new(into, kind=kind, rows=rows.value, columns=columns.value, stride=stride.value)

    def MatmulPreferenceCreate(self, into: Any) -> int:
        return self._new(into)

    def MatmulPreferenceSetAttribute(self, preference: Any, attribute: int, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(value._obj)
        self.objects[preference.value][str(attribute)] = value._obj.value
        return 0

    def MatmulAlgoGetHeuristic(self, *args: Any) -> int:
        preference, most, found, count = args[6:]
        self.asked += 1
        assert self.objects[preference.value]["1"] > 0 and self.objects[preference.value]["5"] == 16
        for place, algorithm in zip(range(most), self.algorithms):
            found[place].algorithm.data[0] = algorithm
            found[place].workspace = 1 << 40 if algorithm == GREEDY else 64
            count._obj.value = place + 1
        return 0

    def MatmulAlgoCheck(self, *args: Any) -> int:
        chosen, result = args[-2:]
        result._obj.workspace = 64
        return 0 if chosen._obj.data[0] in self.known else 7

    def _matrix(self, address: Any, layout: Any) -> Tensor:
        """A column-major matrix as [rows, columns]."""
        shape = self.objects[layout.value]
        dtype = {0: torch.float32, 14: torch.bfloat16}[shape["kind"]]
        count = (shape["columns"] - 1) * shape["stride"] + shape["rows"]
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address.value)
        return torch.frombuffer(memory, dtype=dtype).as_strided(
            (shape["rows"], shape["columns"]), (1, shape["stride"])
        )

    def Matmul(self, *args: Any) -> int:
        _, description, alpha, a, a_layout, b, b_layout, beta, c, _, d, d_layout, chosen, _, size, stream = args
        algorithm = int(chosen._obj.data[0])
        self.ran.append(algorithm)
        self.enqueue(SECONDS[algorithm])
        assert alpha._obj.value == 1 and c.value == d.value and stream.value == 5 and size.value == 64
        if algorithm == REFUSED:
            return 13
        assert self.objects[description.value]["transposed_a"]
        product = self._matrix(a, a_layout).float().t() @ self._matrix(b, b_layout).float()
        out = self._matrix(d, d_layout)
        if beta._obj.value:
            product += out.float()
        out.copy_(product * (1.5 if algorithm == WRONG else 1))
        return 0


class Spoil:
    """The memory that is written between two runs."""

    nbytes = 1 << 12

    def __init__(self, library: HostLibrary) -> None:
        self.library = library

    def zero_(self) -> None:
        self.library.enqueue(20e-6, host=5e-6)


class Mark:
    def __init__(self, library: HostLibrary) -> None:
        self.library, self.at = library, max(library.host, library.device)

    def wait(self) -> None:
        self.library.host = max(self.library.host, self.at)

    def seconds_since(self, earlier: Mark) -> float:
        return self.at - earlier.at


def make(library: HostLibrary, folder: Path) -> MatmulSearch:
    room, clock = torch.empty(1 << 12, dtype=torch.uint8), lambda: library.host
    spoil: Any = Spoil(library)
    gpu = "Some GPU (80 GB)"
    return MatmulSearch(CublasLt(library), 5, gpu, room, spoil, lambda: Mark(library), folder, clock=clock)


def matrices(rows: int = 6, *, out: torch.dtype = torch.bfloat16, spare: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """x and out are the front of wider rows."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 32 + spare, generator=generator).bfloat16()[:, :32]
    weight = torch.randn(24, 32, generator=generator).bfloat16()
    return x, weight, torch.full((rows, 24 + spare), 0.5, dtype=out)[:, :24]


def by_torch(library: HostLibrary, seconds: float) -> Callable[[Tensor, Tensor], None]:
    def otherwise(x: Tensor, out: Tensor) -> None:
        library.enqueue(seconds)

    return otherwise


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("add", [False, True])
def test_the_fastest_right_one_is_found_and_gives_the_product(tmp_path: Path, out: torch.dtype, add: bool) -> None:
    library = HostLibrary()
    search = make(library, tmp_path)
    x, weight, to = matrices(out=out)
    assert not search.run(x, weight, to, add) and (to == 0.5).all(), "nothing is chosen yet"
    search.search(x, weight, to, add, by_torch(library, 5e-6))
    assert (to == 0.5).all(), "the step's own memory is left alone"
    assert GREEDY not in library.ran and WRONG in library.ran
    library.ran.clear()
    before = to.float().clone()
    beside = to.as_strided((6, 8), (32, 1), 24).clone()
    assert search.run(x, weight, to, add) and library.ran == [FAST]
    wanted = x.float() @ weight.float().t() + (before if add else 0)
    assert torch.allclose(to.float(), wanted, atol=0.1 if out == torch.bfloat16 else 1e-4)
    assert torch.equal(to.as_strided((6, 8), (32, 1), 24), beside), "nothing beside the rows is written"
    (entry,) = json.loads(search.path.read_text(encoding="utf-8")).values()
    assert entry["us"] == pytest.approx(3) and entry["torch_us"] == pytest.approx(5)


def test_torch_stays_where_it_is_the_fastest(tmp_path: Path) -> None:
    library = HostLibrary()
    search = make(library, tmp_path)
    x, weight, out = matrices()
    for _ in range(2):
        search.search(x, weight, out, False, by_torch(library, 2e-6))
        assert not search.run(x, weight, out, False) and library.asked == 1, "asked once"


def test_a_found_product_serves_the_next_process(tmp_path: Path) -> None:
    library = HostLibrary()
    x, weight, out = matrices()
    make(library, tmp_path).search(x, weight, out, False, by_torch(library, 5e-6))
    later = HostLibrary()
    search = make(later, tmp_path)
    search.search(x, weight, out, False, by_torch(later, 5e-6))
    assert search.run(x, weight, out, False) and later.ran == [FAST] and not later.asked
    assert not search.run(*matrices(7), False), "a choice is for one shape"
    search.search(*matrices(8), False, by_torch(later, 5e-6))
    assert search.run(*matrices(7), False), "and for the rows that share its search"
    assert not make(HostLibrary(version=140000), tmp_path).run(x, weight, out, False), "and for one library"


def test_a_choice_that_the_library_no_longer_takes_is_made_again(tmp_path: Path) -> None:
    library = HostLibrary()
    x, weight, out = matrices()
    make(library, tmp_path).search(x, weight, out, False, by_torch(library, 5e-6))
    later = HostLibrary((SLOW,))
    search = make(later, tmp_path)
    assert not search.run(x, weight, out, False) and not later.ran
    search.search(x, weight, out, False, by_torch(later, 20e-6))
    assert search.run(x, weight, out, False) and later.ran[-1] == SLOW


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"6x24x32:40,32:bf16": 3}',
        '{"6x24x32:40,32:bf16": {"algorithm": "zz", "workspace": 0}}',
        '{"6x24x32:40,32:bf16": {"algorithm": null, "workspace": "many"}}',
        '{"6x24x32:40,32:bf16": {"algorithm": "' + "00" * 64 + '", "workspace": -1}}',
    ],
)
def test_a_damaged_file_is_searched_again(tmp_path: Path, text: str) -> None:
    library = HostLibrary()
    x, weight, out = matrices()
    make(library, tmp_path).path.write_text(text, encoding="utf-8")
    search = make(library, tmp_path)
    assert not search.run(x, weight, out, False)
    search.search(x, weight, out, False, by_torch(library, 5e-6))
    assert search.run(x, weight, out, False) and library.ran[-1] == FAST


def test_a_file_that_cannot_be_renamed_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "choices.json" / "in-the-way").mkdir(parents=True)
    kept_choices.write(tmp_path / "choices.json", b"some")
    assert [path.name for path in tmp_path.iterdir()] == ["choices.json"]
    kept_choices.write(tmp_path / "new" / "choices.json", b"some")
    assert (tmp_path / "new" / "choices.json").read_bytes() == b"some"


def test_products_that_are_not_searched(tmp_path: Path) -> None:
    library = HostLibrary()
    search = make(library, tmp_path)
    x, weight, out = matrices()
    odd = torch.zeros(6 * 32 + 1, dtype=torch.bfloat16)[1:].view(6, 32)
    for args in (
        (x.float(), weight, out),
        (x, weight.float(), out),
        (x, weight.t().contiguous().t(), out),
        (x[:0], weight, out[:0]),
        (odd, weight, out),
        (x, weight, out.half()),
    ):
        search.search(*args, False, by_torch(library, 1.0))
        assert not search.run(*args, False)
    assert not library.asked and not library.ran
