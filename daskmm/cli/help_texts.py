"""What the commands say of themselves: summary, description and examples of each."""

DASKMM = """\
Cluster data larger than memory, and find the features that make the clusters.

Rows are samples, columns are features, all numbers. Data are read from disk in
blocks, once per iteration; memory holds a few blocks at a time."""

DASKMM_EXAMPLE = """\
a first session:
  daskmm demo                                     see it work on made-up data
  daskmm plan points.zarr -k 20                   what would a fit cost?
  daskmm fit points.zarr -k 20 --out run          cluster
  daskmm inspect run                              what was found?
  daskmm predict run more.zarr --out more-labels.zarr

exit codes: 0 fine, 1 unexpected failure (or gram verify found a fault), 2 something
you can mend (one line says what)."""

COMMANDS = {
    "demo": (
        "make data on disk, cluster them two ways, compare with the truth",
        """\
Make a data set of 1.6 GB on disk, cluster it out of core by Lloyd's k-means and
by entropy weighted power k-means, and compare both with the truth. Takes one to
three minutes and leaves data, models, labels and pictures in a folder.""",
        """\
example:
  daskmm demo --out first-look
  daskmm inspect first-look/entropy""",
    ),
    "fit": (
        "cluster the rows of a table",
        """\
Cluster the rows of INPUT and write a run folder:

  model/               read by 'daskmm predict' and daskmm.load
  labels.zarr          the cluster of each row, int32
  summary.json         sizes, history, feature weights and more, for machines
  objective.png        objective and power by iteration
  projection.png       a sample of rows, coloured by cluster
  feature_weights.png  which features matter (--model entropy)
  report.html          all of this as a page to show around (--report)

A fit that was killed, interrupted or out of space is gone on with by the same
command: until it is finished, the folder holds a checkpoint. There is a summary
when all is written. A fit reads INPUT once per iteration, twice around the fit,
and once more for the labels.""",
        """\
example:
  daskmm fit points.zarr -k 20 --out run
  daskmm fit 'part-*.csv' -k 5 --model entropy --columns age,height --out run2

which model?
  power     k-means that does not depend on a lucky start: it anneals from a
            smooth objective to that of k-means
  entropy   the same, and weighs the features: use it when many do not matter
  kmeans    Lloyd's algorithm: the fewest passes, the most luck
  kernel    clusters that no straight line separates; exact up to some 100,000
            rows, with --n-landmarks for any number
  multi-kernel
            the same, and weighs twelve kernels
  mean-shift
            finds the number of clusters, and weighs the features; the time grows
            with the square of the number of rows""",
    ),
    "predict": (
        "assign rows to the clusters of a run",
        """\
Write the cluster of each row of INPUT, by the model of a run folder, as a zarr
array of int32. INPUT has the features that the model was fitted to, in the same
order; of csv and parquet files the columns are found by name.""",
        """\
example:
  daskmm predict run more.zarr --out more-labels.zarr
  python -c "import zarr; print(zarr.open_array('more-labels.zarr')[:10])\"""",
    ),
    "inspect": (
        "say what a run found",
        "Say what a run folder holds: the fit, sizes of the clusters, features found.",
        """\
example:
  daskmm inspect run
  daskmm inspect run --json | python -m json.tool | less""",
    ),
    "plan": (
        "say what a fit would cost, before the data are read",
        """\
Say what a fit to INPUT would cost: passes over the data, bytes read, memory of
each worker, tasks; with --workers, seconds. Reads no data but for that. Takes the
options of 'daskmm fit'.""",
        """\
example:
  daskmm plan points.zarr -k 200 --model entropy
  daskmm plan points.zarr -k 200 --workers 1 8 100""",
    ),
}

GRAM = (
    "keep the matrix of a kernel on disk",
    """\
Make and check Gram stores: the kernel value of every pair of rows, in checksummed
tiles of which only the upper triangle is written. Kernel fits that are repeated
(other numbers of clusters, other seeds) can then share one.""",
    """\
example:
  daskmm gram build points.zarr --kernel rbf --out gram
  daskmm gram verify gram --data points.zarr
  daskmm gram repair gram points.zarr""",
)

GRAM_COMMANDS = {
    "build": (
        "make a store, or go on with one that was begun",
        """\
Write the kernel value of every pair of rows of INPUT. The rows are brought into
memory, the matrix is not: n rows take n²/2 values on disk. Killed or out of space,
the same command goes on where it stopped: only missing tiles are written.""",
        """\
example:
  daskmm gram build points.zarr --kernel rbf --standardize --out gram""",
    ),
    "verify": (
        "read every tile, and say what is wrong with which",
        """\
Read every tile and test its checksum; with --data, compare the data with those
that the store was made from. Exit code 1 when something is wrong.""",
        """\
example:
  daskmm gram verify gram --data points.zarr || daskmm gram repair gram points.zarr""",
    ),
    "repair": (
        "make missing and damaged tiles anew",
        """\
Make missing and damaged tiles anew from INPUT, which must be the data that the
store was made from; kernel and scaling are those of the store.""",
        """\
example:
  daskmm gram repair gram points.zarr""",
    ),
    "info": (
        "say what a store holds",
        "Say what a store holds: kernel, rows, tiles, and how many are missing.",
        """\
example:
  daskmm gram info gram --json""",
    ),
}
