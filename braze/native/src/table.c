/* Tables of tensors' addresses for kernels that work on many tensors at once. */
#include "braze.h"

enum { MAX_DIMS = 64, HEAD = 2 };

/* Whether the strides of dimensions that have any effect are equal. */
static bool
same_layout(const TensorLayout *a, const TensorLayout *b)
{
    if (a->ndim != b->ndim) {
        return false;
    }
    for (int64_t i = 0; i < a->ndim; i++) {
        if (a->sizes[i] != b->sizes[i] || (a->sizes[i] > 1 && a->strides[i] != b->strides[i])) {
            return false;
        }
    }
    return true;
}

/* The number of elements if they fill their memory without holes or overlaps, in whatever order; else -1. */
static int64_t
dense_count(const TensorLayout *layout)
{
    int64_t count = 1, expected = 1, left[MAX_DIMS], nleft = 0;
    if (layout->ndim > MAX_DIMS) {
        return -1;
    }
    for (int64_t i = layout->ndim; i-- > 0;) {
        if (layout->sizes[i] == 0) {
            return 0;
        }
        count *= layout->sizes[i];
        if (layout->sizes[i] > 1) {
            left[nleft++] = i;
        }
    }
    /* row-major takes one turn */
    while (nleft > 0) {
        int64_t kept = 0, before = nleft;
        for (int64_t j = 0; j < nleft; j++) {
            if (layout->strides[left[j]] == expected) {
                expected *= layout->sizes[left[j]];
            }
            else {
                left[kept++] = left[j];
            }
        }
        nleft = kept;
        if (nleft == before) {
            return -1;
        }
    }
    return count;
}

static bool
same_facts(const TensorFacts *a, const TensorFacts *b)
{
    return a->keys == b->keys && a->dtype == b->dtype && a->device_type == b->device_type
           && a->device_index == b->device_index;
}

/* One row: whether it is regular; `changed` is set if an address other than that in column 1 did. */
static bool
fill_row(PyObject *columns, Py_ssize_t at, const TensorFacts *like, int64_t *row, int64_t start, int *changed)
{
    TensorLayout first, other;
    TensorFacts facts;
    int64_t count = 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(columns); k++) {
        PyObject *value = PyList_GET_ITEM(PyTuple_GET_ITEM(columns, k), at);
        TensorLayout *layout = k == 0 ? &first : &other;
        if (!tensor_facts(value, &facts) || !same_facts(&facts, like) || !tensor_layout(value, layout)) {
            return false;
        }
        if (k == 0 ? (count = dense_count(layout)) < 0 : !same_layout(&first, layout)) {
            return false;
        }
        *changed |= k != 1 && row[HEAD + k] != (int64_t)(intptr_t)layout->data;
        row[HEAD + k] = (int64_t)(intptr_t)layout->data;
    }
    *changed |= row[0] != count;
    row[0] = count;
    row[1] = start;
    return true;
}

static int64_t
fill_table(PyObject *columns, Py_ssize_t rows, const TensorFacts *like, int64_t *table, Py_ssize_t width,
           Py_ssize_t first, int *changed)
{
    int64_t start = 0;
    if (first > 0) {
        const int64_t *before = table + (first - 1) * width;
        start = before[1] + ((before[0] + 63) & ~(int64_t)63);
    }
    for (Py_ssize_t i = first; i < rows; i++) {
        int64_t *row = table + i * width;
        if (!fill_row(columns, i, like, row, start, changed)) {
            return i;
        }
        start += (row[0] + 63) & ~(int64_t)63;
    }
    return -1;
}

static PyObject *
tabulate(PyObject *module, PyObject *args)
{
    PyObject *columns, *like;
    Py_buffer table;
    Py_ssize_t first = 0, rows = -1;
    TensorFacts facts;
    int changed = 0;
    if (!PyArg_ParseTuple(args, "O!Ow*|n:tabulate", &PyTuple_Type, &columns, &like, &table, &first)) {
        return NULL;
    }
    bool lists = PyTuple_GET_SIZE(columns) > 0;
    for (Py_ssize_t k = 0; lists && k < PyTuple_GET_SIZE(columns); k++) {
        PyObject *column = PyTuple_GET_ITEM(columns, k);
        lists = PyList_Check(column) && (rows < 0 || PyList_GET_SIZE(column) == rows);
        rows = lists ? PyList_GET_SIZE(column) : rows;
    }
    Py_ssize_t width = rows > 0 ? table.len / (Py_ssize_t)sizeof(int64_t) / rows : 0;
    PyObject *result = NULL;
    if (!lists || first < 0) {
        PyErr_SetString(PyExc_TypeError, "tabulate takes a tuple of lists of one length");
    }
    else if (rows > 0 && width < HEAD + PyTuple_GET_SIZE(columns)) {
        PyErr_SetString(PyExc_ValueError, "tabulate: the table has too few columns");
    }
    else if (!tensor_facts(like, &facts)) {
        PyErr_SetString(PyExc_TypeError, "tabulate: the sample is no tensor, or torch is not bound");
    }
    else {
        int64_t wrong = fill_table(columns, rows, &facts, table.buf, width, first, &changed);
        result = Py_BuildValue("LO", (long long)wrong, changed ? Py_True : Py_False);
    }
    PyBuffer_Release(&table);
    return result;
}

PyMethodDef table_functions[] = {
    {"tabulate", tabulate, METH_VARARGS,
     "tabulate(columns, like, table, first=0)\n--\n\nWrite sizes and addresses of columns of tensors; see "
     "braze/native/tables.py."},
    {NULL},
};
