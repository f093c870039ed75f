/* One operation of autograd's, the forward and backward of a compiled graph, without Python around the graph's own calls.
 *
 * What is done here for a call is what `braze/aot/calls/autograd.py` does: apply the operation, keep what the backward reads, give the
 * results; and going back see that the gradients are as the backward was compiled for, and hand them over. The node is PyTorch's,
 * the one of torch.autograd.Function: its class asks this for `forward` and `apply`. Whatever is not plain (grad mode off, a
 * transform of torch.func, gradients that are missing, tensors of another layout, shape or type) is for Python.
 */
#include "operation.h"

static PyObject *name_is_view, *name_detach, *name_version, *name_to_save, *name_materialize, *name_kept, *name_saved, *name_clear;

/* -1 with an exception set where there is no memory for them. */
int
operation_intern_names(void)
{
    struct {
        PyObject **name;
        const char *text;
    } const names[] = {
        {&name_is_view, "_is_view"},          {&name_detach, "detach"},
        {&name_version, "_version"},          {&name_to_save, "to_save"},
        {&name_materialize, "materialize_grads"}, {&name_kept, "kept"},
        {&name_saved, "saved_tensors"},       {&name_clear, "maybe_clear_saved_tensors"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (*names[i].name == NULL && (*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    return 0;
}

/* -- forward ---------------------------------------------------------------------------------------- */

/* The results, each a tensor of its own where kernels gave a view: autograd lets nobody write to views of functions. */
static PyObject *
roots(PyObject *results)
{
    PyObject *list = PySequence_List(results);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        if (!is_tensor(item)) {
            continue;
        }
        PyObject *view = PyObject_CallMethodNoArgs(item, name_is_view);
        PyObject *root = view == Py_True ? PyObject_CallMethodNoArgs(item, name_detach) : NULL;
        if (view == NULL || (view == Py_True && root == NULL)) {
            Py_CLEAR(list);
        }
        else if (root != NULL) {
            PyList_SetItem(list, i, root);
        }
        Py_XDECREF(view);
    }
    return list;
}

/* What is kept, in order; values of another operation without a history. */
static PyObject *
values_kept(const Operation *self, PyObject *inputs, PyObject *results)
{
    PyObject *values = PyTuple_New(self->nkept);
    for (Py_ssize_t i = 0; values != NULL && i < self->nkept; i++) {
        const Kept *kept = &self->kept[i];
        PyObject *from = kept->input ? inputs : results;
        if (kept->index >= PySequence_Fast_GET_SIZE(from)) {
            PyErr_SetString(PyExc_IndexError, "a graph has fewer values than it keeps");
            Py_CLEAR(values);
            break;
        }
        PyObject *value = Py_NewRef(PySequence_Fast_GET_ITEM(from, kept->index));
        if (kept->early || (kept->foreign && tensor_requires_grad(value))) {
            Py_SETREF(value, PyObject_CallMethodNoArgs(value, name_detach));
        }
        if (value == NULL) {
            Py_CLEAR(values);
            break;
        }
        PyTuple_SET_ITEM(values, i, value);
    }
    return values;
}

/* ctx.kept of the Python side: (sizes, numbers, versions of the kept results that the caller gets). */
static int
note_versions(const Operation *self, PyObject *ctx, PyObject *values)
{
    PyObject *versions = PyList_New(0);
    for (Py_ssize_t i = 0; versions != NULL && i < self->nkept; i++) {
        if (self->kept[i].given) {
            PyObject *version = PyObject_GetAttr(PyTuple_GET_ITEM(values, i), name_version);
            if (version == NULL || PyList_Append(versions, version) < 0) {
                Py_CLEAR(versions);
            }
            Py_XDECREF(version);
        }
    }
    PyObject *noted = versions != NULL ? Py_BuildValue("({}()N)", versions) : NULL;
    int done = noted != NULL ? PyObject_SetAttr(ctx, name_kept, noted) : -1;
    Py_XDECREF(noted);
    return done;
}

static PyObject *
keep(const Operation *self, PyObject *ctx, PyObject *inputs, PyObject *results)
{
    PyObject *values = values_kept(self, inputs, results);
    if (values == NULL) {
        return NULL;
    }
    int done = PyObject_SetAttr(ctx, name_to_save, values);
    if (done == 0) {
        done = PyObject_SetAttr(ctx, name_materialize, Py_False);
    }
    if (done == 0 && self->some_given) {
        done = note_versions(self, ctx, values);
    }
    Py_DECREF(values);
    if (done == 0 && PyList_GET_SIZE(results) < self->nresults) {
        PyErr_SetString(PyExc_IndexError, "a graph gives fewer results than it should");
        done = -1;
    }
    if (done < 0) {
        return NULL;
    }
    PyObject *items = PyList_GetSlice(results, 0, self->nresults);
    PyObject *answer = items != NULL ? PyList_AsTuple(items) : NULL;
    Py_XDECREF(items);
    return answer;
}

/* forward(ctx, inputs, *arguments) */
PyObject *
operation_forward(Operation *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "forward takes a context, the inputs as a tuple, and those that autograd sees");
        return NULL;
    }
    PyObject *found = PyObject_CallOneArg(self->forward, args[1]);
    PyObject *results = found != NULL ? roots(found) : NULL;
    Py_XDECREF(found);
    if (results == NULL) {
        return NULL;
    }
    PyObject *const values[] = {args[0], args[1], results};
    PyObject *answer = self->save != NULL ? PyObject_Vectorcall(self->save, values, 3, NULL) : keep(self, args[0], args[1], results);
    Py_DECREF(results);
    return answer;
}

/* -- backward --------------------------------------------------------------------------------------- */

static bool
is_plain(const Read *read, PyObject *value)
{
    TensorFacts facts;
    TensorLayout layout;
    bool const kind = tensor_facts(value, &facts) && facts.keys == read->keys && facts.dtype == read->dtype;
    if (!kind || !tensor_layout(value, &layout) || layout.ndim != read->ndim) {
        return false;
    }
    for (Py_ssize_t d = 0; d < read->ndim; d++) {
        if (layout.sizes[d] != read->sizes[d] || (layout.strides[d] != read->strides[d] && layout.sizes[d] != 1)) {
            return false;
        }
    }
    return true;
}

static bool
are_plain(const Read *reads, Py_ssize_t nreads, PyObject *const *values, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < nreads; i++) {
        if (reads[i].place >= count || !is_plain(&reads[i], values[reads[i].place])) {
            return false;
        }
    }
    return true;
}

/* The backward for these gradients (a new reference); NULL without an exception where Python has it. */
static PyObject *
backward_for(Operation *self, PyObject *const *tangents, Py_ssize_t count)
{
    if (self->backward == Py_None || grad_mode_now() != 0 || !are_plain(self->tangents, self->ntangents, tangents, count)) {
        return NULL;
    }
    if (self->backward == NULL) {
        PyObject *found = PyObject_CallNoArgs(self->find);
        if (found == NULL) {
            return NULL;
        }
        if (self->backward == NULL) {
            self->backward = Py_NewRef(found);
        }
        Py_DECREF(found); /* another thread may have asked, too, and be using what it was given */
    }
    return self->backward != Py_None ? Py_NewRef(self->backward) : NULL;
}

static PyObject *
call_late(Operation *self, PyObject *ctx, PyObject *const *tangents, Py_ssize_t count, PyObject *saved)
{
    PyObject *given = PyTuple_New(count);
    for (Py_ssize_t i = 0; given != NULL && i < count; i++) {
        PyTuple_SET_ITEM(given, i, Py_NewRef(tangents[i]));
    }
    PyObject *answer = given != NULL ? PyObject_CallFunctionObjArgs(self->late, ctx, given, saved, NULL) : NULL;
    Py_XDECREF(given);
    return answer;
}

/* What was saved and the gradients, in a list that alone holds what was saved unless the graph is retained. */
static PyObject *
values_read(Operation *self, PyObject *ctx, PyObject *saved, PyObject *const *tangents)
{
    PyObject *cleared = PyObject_CallMethodNoArgs(ctx, name_clear);
    if (cleared == NULL) {
        return NULL;
    }
    Py_DECREF(cleared);
    PyObject *values = PyList_New(self->nkept + self->ntangents);
    for (Py_ssize_t i = 0; values != NULL && i < self->nkept; i++) {
        PyList_SET_ITEM(values, i, Py_NewRef(PyTuple_GET_ITEM(saved, i)));
    }
    for (Py_ssize_t i = 0; values != NULL && i < self->ntangents; i++) {
        PyObject *own = gradient_taken(&self->holds, i, tangents[self->tangents[i].place], self->tangents[i].bytes);
        if (own == NULL) {
            Py_CLEAR(values);
            break;
        }
        PyList_SET_ITEM(values, self->nkept + i, own);
    }
    return values;
}

/* (None, *gradients): none is of the tuple of inputs. */
static PyObject *
gradients_of(const Operation *self, PyObject *found)
{
    PyObject *items = PySequence_Fast(found, "a backward gives a sequence");
    if (items == NULL) {
        return NULL;
    }
    PyObject *answer = NULL;
    if (PySequence_Fast_GET_SIZE(items) != self->narguments) {
        PyErr_SetString(PyExc_IndexError, "a backward gives another number of gradients than it should");
    }
    else if ((answer = PyTuple_New(self->narguments + 1)) != NULL) {
        PyTuple_SET_ITEM(answer, 0, Py_NewRef(Py_None));
        for (Py_ssize_t i = 0; i < self->narguments; i++) {
            PyTuple_SET_ITEM(answer, i + 1, Py_NewRef(PySequence_Fast_GET_ITEM(items, i)));
        }
    }
    Py_DECREF(items);
    return answer;
}

/* The gradients by a backward for those that come in. */
static PyObject *
gradients_by(Operation *self, PyObject *backward, PyObject *ctx, PyObject *const *tangents, Py_ssize_t count)
{
    PyObject *saved = PyObject_GetAttr(ctx, name_saved);
    if (saved == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            return NULL;
        }
        PyObject *error = error_taken(); /* some of it cannot be had: Python sees whether that is read */
        PyObject *answer = error != NULL ? call_late(self, ctx, tangents, count, error) : NULL;
        Py_XDECREF(error);
        return answer;
    }
    if (!PyTuple_Check(saved) || PyTuple_GET_SIZE(saved) != self->nkept
        || !are_plain(self->saved, self->nsaved, PySequence_Fast_ITEMS(saved), self->nkept)) {
        PyObject *answer = call_late(self, ctx, tangents, count, saved);
        Py_DECREF(saved);
        return answer;
    }
    PyObject *values = values_read(self, ctx, saved, tangents);
    Py_DECREF(saved);
    if (values == NULL) {
        return NULL;
    }
    PyObject *found = called_in_range(self->name, backward, &values, 1);
    Py_DECREF(values);
    PyObject *answer = found != NULL ? gradients_of(self, found) : NULL;
    Py_XDECREF(found);
    return answer;
}

/* backward(ctx, *tangents) */
PyObject *
operation_backward(Operation *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "backward takes a context and the gradients");
        return NULL;
    }
    PyObject *ctx = args[0], *const *tangents = args + 1;
    PyObject *backward = backward_for(self, tangents, nargs - 1);
    if (backward == NULL) {
        return PyErr_Occurred() ? NULL : call_late(self, ctx, tangents, nargs - 1, Py_None);
    }
    PyObject *answer = gradients_by(self, backward, ctx, tangents, nargs - 1);
    Py_DECREF(backward);
    return answer;
}

/* -- the call --------------------------------------------------------------------------------------- */

/* Whether this call is for autograd as it is: 1, 0, or -1 with an exception set. */
static int
is_for_autograd(const Operation *self, PyObject *const *inputs, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < self->narguments; i++) {
        uint64_t keys;
        const Argument *argument = &self->arguments[i];
        if (argument->input >= count || !tensor_keys(inputs[argument->input], &keys) || keys != argument->keys) {
            return 0;
        }
    }
    if (grad_mode_now() != 1) {
        return 0;
    }
    PyObject *transformed = PyObject_CallNoArgs(self->transforms);
    int plain = transformed != NULL ? transformed == Py_False : -1;
    Py_XDECREF(transformed);
    return plain;
}

PyObject *
operation_call(Operation *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0)) {
        PyErr_SetString(PyExc_TypeError, "the call of a graph takes its inputs as one list");
        return NULL;
    }
    PyObject *given = args[0];
    if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) {
        return PyObject_CallOneArg(self->general, given);
    }
    PyObject *inputs = PySequence_Tuple(given);
    if (inputs == NULL) {
        return NULL;
    }
    int plain = is_for_autograd(self, PySequence_Fast_ITEMS(inputs), PyTuple_GET_SIZE(inputs));
    PyObject *answer = NULL;
    if (plain > 0) {
        PyObject *seen = PyTuple_New(self->narguments + 1);
        for (Py_ssize_t i = 0; seen != NULL && i <= self->narguments; i++) {
            PyTuple_SET_ITEM(seen, i, Py_NewRef(i == 0 ? inputs : PyTuple_GET_ITEM(inputs, self->arguments[i - 1].input)));
        }
        answer = seen != NULL ? PyObject_Call(self->apply, seen, NULL) : NULL;
        Py_XDECREF(seen);
    }
    else if (plain == 0) {
        answer = PyObject_CallOneArg(self->general, given);
    }
    Py_DECREF(inputs);
    return answer;
}
