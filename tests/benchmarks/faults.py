"""What faults of a cluster cost: a Markdown table of faults, tries, outcomes and extra reads.

Run: python tests/benchmarks/faults.py

The cases are those of tests/system/test_faults.py: workers are killed, retired or restarted in the
midst of a given pass; every fit is compared with the undisturbed one. Reads are counted at the
source.
"""

import itertools
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

import test_faults as faults
from _faults import SpendByJob, local_cluster


def row(fault, run, blocks):
    try:
        extras = run()
    except Exception as error:
        print(f"| {fault} | | {type(error).__name__}: {error} | |", flush=True)
        return
    told = ", ".join(map(str, extras))
    print(f"| {fault} | {len(extras)} | same model | {told} of {blocks} |", flush=True)


def main():
    print("| fault | times tried | outcome | extra reads of a pass's blocks |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        current = Path(scratch) / "current"
        numbers = itertools.count()

        def new_folder():
            return faults.folder_at_play(Path(scratch) / str(next(numbers)), current)

        with local_cluster(3) as client:
            client.register_plugin(SpendByJob(current))
            for name, case in faults.CASES.items():
                blocks = 9 if "Gram" in name else faults.BLOCKS
                row(
                    f"worker killed: {name}",
                    lambda case=case: faults.run_case(client, case, new_folder),
                    blocks,
                )
            row(
                "worker killed: predict",
                lambda: [faults.predicted(client, n, new_folder())[2] for n in faults.PLACES],
                faults.BLOCKS,
            )
            for persist, act in itertools.product(
                (False, True), (faults.restart, faults.retire_one)
            ):
                kept = ", data kept by workers" if persist else ""
                row(
                    f"{act.__doc__}{kept}",
                    lambda act=act, persist=persist: [
                        act(client, persist, n, new_folder) for n in faults.PLACES
                    ],
                    faults.BLOCKS,
                )


if __name__ == "__main__":
    main()
