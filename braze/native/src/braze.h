/* What the sources of the extension share. */
#ifndef BRAZE_H
#define BRAZE_H

#include "compat.h"
#include "vocabulary.h"

/* -- guards.c ----------------------------------------------------------------------------------- */
extern PyTypeObject GuardProgram_Type;
typedef struct GuardProgram GuardProgram;

/* The graph inputs (new tuple) if all guards hold; else NULL, with an exception set only where it ends the program. */
PyObject *program_match(GuardProgram *program, PyFunctionObject *function, PyObject *const *locals,
                        Py_ssize_t nlocals);

/* Forget why a guard could not be read. What ends the program (Ctrl-C in Python code that a guard runs) stays the caller's. */
static inline void
forget_error(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
}

/* -- tensor_check.c ----------------------------------------------------------------------------- */
typedef struct {
    int64_t value; /* the size; or the index of the symbol */
    int kind;      /* DIM_EXACT, DIM_SYMBOL, DIM_ANY */
} Dim;
enum { DIM_EXACT, DIM_SYMBOL, DIM_ANY };

/* What decides a tensor's metadata, as words of its implementation (image.c). */
enum { IMAGE_WORDS = 16 };
typedef struct {
    uint64_t word[IMAGE_WORDS], mask[IMAGE_WORDS]; /* word is masked */
    PyTypeObject *type;                            /* borrowed, only ever compared */
    int requires_grad;                             /* -1: either */
} Image;

typedef struct {
    PyObject *python;   /* strong: what was given */
    PyTypeObject *type; /* strong; NULL: go through Python */
    int dtype, device_type, device_index;
    int ndim;
    int requires_grad; /* -1: either */
    bool has_strides, has_keys;
    bool exact; /* all sizes and strides are DIM_EXACT: values stand in `plain` */
    uint64_t keys;
    Dim *dims;      /* ndim sizes, then ndim strides */
    int64_t *plain; /* the same as numbers, for comparison in one go */
    Image *image;   /* of the last tensor for which this held, where that is exact; or NULL */
} TensorSpec;

typedef struct {
    int64_t *values;
    char *bound;
    int count;
} Symbols;

bool symbol_bind(Symbols *symbols, int64_t index, int64_t value);
int tensor_spec_parse(TensorSpec *spec, PyObject *expected, int nsymbols);
void tensor_spec_clear(TensorSpec *spec);
bool tensor_holds(TensorSpec *spec, PyObject *value, Symbols *symbols);

/* Whether the metadata are those of the image. False also means: ask in the ordinary way. */
bool image_holds(const Image *image, PyObject *tensor);
/* `image` (may be NULL: made) is now of this tensor; NULL if words alone cannot tell. Frees what it replaces. */
Image *image_again(Image *image, PyObject *tensor, int requires_grad);

/* -- torch_state.c ------------------------------------------------------------------------------ */
typedef struct {
    int device_type, enabled, dtype;
} Autocast;
typedef struct {
    int kind;
    bool native;
    int64_t value;
    int nrows;
    Autocast *rows;
    PyObject *name, *expected; /* strong: for the way through Python */
} StateSpec;

int state_spec_parse(StateSpec *spec, PyObject *name, PyObject *expected);
void state_spec_clear(StateSpec *spec);
bool state_holds(const StateSpec *spec);

/* Whether operators have somebody to see them: autograd, a mode. True also means: that cannot be told. */
bool operators_are_watched(void);

/* Whether grad mode is on; -1: that cannot be told. */
int grad_mode_now(void);

/* Whether inference mode is on; -1 with an exception set. */
int inference_mode_now(void);

/* -- tensor.c ----------------------------------------------------------------------------------- */
/* The address of a tensor's first element, or an int's value. -1 with an exception set on failure. */
int buffer_address(PyObject *value, void **address);

/* What tensors of one kind have in common; false if the value is no tensor that can be read here. */
typedef struct {
    uint64_t keys;
    int32_t dtype, device_type, device_index;
} TensorFacts;
bool tensor_facts(PyObject *value, TensorFacts *facts);

/* A tensor's dispatch keys; false if the value is no tensor that can be read here. */
bool tensor_keys(PyObject *value, uint64_t *keys);

/* Whether this is a tensor that requires grad. */
bool tensor_requires_grad(PyObject *value);
bool implementation_requires_grad(const void *implementation);

/* Where a tensor (one with facts of plain memory) has its elements; the arrays are its own. */
typedef struct {
    void *data;
    int64_t ndim;
    const int64_t *sizes, *strides;
} TensorLayout;
bool tensor_layout(PyObject *value, TensorLayout *layout);
PyObject *tensor_memory(PyObject *value, Py_ssize_t itemsize);

/* The index of a tensor's device; false if the value is no tensor that can be read here. */
bool tensor_place(PyObject *value, int *index);

/* Whether this is a tensor, and tensors can be read here. */
bool is_tensor(PyObject *value);

/* The at::Tensor in a Python tensor; NULL if the value is no tensor that can be read here. */
void *tensor_handle(PyObject *value);

extern PyMethodDef tensor_methods[];

/* -- libtorch.c --------------------------------------------------------------------------------- */
extern PyMethodDef libtorch_methods[];

/* -- allocate.c --------------------------------------------------------------------------------- */
extern PyMethodDef allocation_functions[];

/* A dense tensor on the CPU, of a dtype by its number, and its memory; NULL (no exception set) where none is made here. */
PyObject *dense_tensor(int number, Py_ssize_t ndim, const int64_t *sizes, void **memory);
/* A tensor of its own, a view of none, over the memory and in the layout of another; NULL with an exception set. */
PyObject *tensor_again(PyObject *tensor);

/* Whether tensors are made here (those below may be called). */
bool tensors_are_made(void);
/* The Python object of a tensor of libtorch's, which is released; of an undefined one None. NULL with an exception set. */
PyObject *tensor_of_handle(void *handle);
/* A tensor of its own, a view of none, in a layout over the memory of another; false where that cannot be. */
enum { LAYOUT_DIMS = 16 };
typedef struct {
    int64_t ndim, offset; /* from the tensor's first element */
    int64_t sizes[LAYOUT_DIMS], strides[LAYOUT_DIMS];
} ViewLayout;
bool handle_view(void *handle, const ViewLayout *layout, void **made);
void handle_release(void *handle);
/* A tensor that is none, as libtorch has it where Python has None; NULL where it cannot be had. */
void *undefined_handle(void);

/* -- numbers.c ---------------------------------------------------------------------------------- */
/* What torch.tensor makes of a list of numbers, of the dtype that it infers or of the one of this name; NULL (no exception set) where none is made here. */
PyObject *tensor_of_numbers(PyObject *list, PyObject *dtype);
extern PyMethodDef numbers_functions[];

/* -- replay.c ----------------------------------------------------------------------------------- */
extern PyTypeObject Replay_Type, Replays_Type;

/* -- holders.c ---------------------------------------------------------------------------------- */
extern PyTypeObject Holders_Type;
extern PyMethodDef holders_functions[];

/* -- held.c: whether a tensor has as many holders as one of which it is known who holds it ------------ */

/* By the uses of the tensor and of its memory, which is PyTorch's, the tensor's and of so many bytes: 1, 0, or -1 with an exception set. */
int tensor_held_by(PyObject *tensor, Py_ssize_t bytes, const Py_ssize_t *uses);

typedef struct {
    PyObject *ask;        /* how a gradient is held that the engine alone holds */
    Py_ssize_t counts[3]; /* what it says: references to the object, uses of the tensor, of its memory; 0: not asked, -1: not known */
    PyObject *empties;    /* by number of the gradient: what is put in its place */
} EngineHolds;

/* A gradient for a backward alone (a new reference): the memory of one of so many bytes (0: of any other) that only the engine holds, until the
 * backward returns, changes hands, and the engine's tensor is left empty. */
PyObject *gradient_taken(EngineHolds *holds, Py_ssize_t number, PyObject *gradient, Py_ssize_t bytes);
extern PyMethodDef held_functions[];

/* Whether nobody holds what a recording of at least this number writes; note that one is replayed now. */
bool holders_free(PyObject *holders, int64_t number);
void holders_use(PyObject *holders);

/* -- table.c ------------------------------------------------------------------------------------ */
extern PyMethodDef table_functions[];

/* -- entry.c ------------------------------------------------------------------------------------ */
extern PyTypeObject Entry_Type;
extern PyMethodDef entry_functions[];

/* Run a variant for `function` with its argument slots. Returns the result; NULL with an exception; or
 * NULL without one where the function is to be run as it is. */
PyObject *entry_run(PyObject *entry, PyFunctionObject *function, PyObject *const *slots, Py_ssize_t count);

/* -- bind.c ------------------------------------------------------------------------------------- */
typedef struct {
    PyObject **slots;          /* borrowed; as many as code_slot_count says */
    PyObject *rest, *keywords; /* strong: the *args tuple and the **kwargs dict */
} Bound;
Py_ssize_t code_slot_count(PyCodeObject *code);
/* Fill the slots as Python would (`self` may be NULL); false where Python would raise (or memory ran out). */
bool bind_arguments(PyFunctionObject *function, PyObject *self, Bound *bound, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames);

/* -- class_call.c ------------------------------------------------------------------------------- */
extern PyTypeObject CallOfClass_Type;

/* -- addresses.c -------------------------------------------------------------------------------- */
extern PyMethodDef addresses_functions[];

/* -- tracers.c ---------------------------------------------------------------------------------- */
bool traced_by_another(void);
bool surely_traced_by_another(void); /* asks Python, who knows of a torch.fx that has replaced nothing yet */
extern PyMethodDef tracers_functions[];

/* -- ranges.c ----------------------------------------------------------------------------------- */
/* Whether anybody listens to what is called in this thread: PyTorch's profiler, for one. */
bool ranges_wanted(void);
bool ranges_wanted_within(void); /* the same for what is called within a range: costs nothing where there is none */
/* A range that has begun; NULL, without an exception, where nobody listens or there can be none: what is called matters more. */
PyObject *range_begun(PyObject *name);
void range_ended(PyObject *range); /* may be NULL; a pending exception stays */
PyObject *called_in_range(PyObject *name, PyObject *callable, PyObject *const *args, size_t nargsf);
extern PyMethodDef ranges_functions[];

/* -- builtins.c --------------------------------------------------------------------------------- */
bool builtins_replaced(void);
extern PyMethodDef builtins_functions[];

/* -- resumed.c ---------------------------------------------------------------------------------- */
extern PyMethodDef resumed_methods[];

/* -- hook.c ------------------------------------------------------------------------------------- */
enum { MODE_OFF, MODE_RUN, MODE_TRACE };
extern _Thread_local int current_mode;
extern PyObject *default_marker;
extern PyMethodDef hook_methods[];
/* Run a function no variant of which fits; frames it starts are offered to the frame callback. */
PyObject *hook_call_function(PyObject *callable, PyFunctionObject *function, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames);
/* Whether an evaluator of somebody else's has a part in evaluating frames now. */
bool hook_is_overlaid(void);
int hook_init(void);

/* -- launch.c ----------------------------------------------------------------------------------- */
extern PyTypeObject Launcher_Type;
extern PyTypeObject Segment_Type;

/* -- device_launch.c ---------------------------------------------------------------------------- */
extern PyTypeObject DeviceLauncher_Type;
extern PyMethodDef device_launch_functions[];

/* Copy bytes on a GPU, on its current stream; false where that is for PyTorch to do. */
bool device_copy(int device, void *to, const void *from, size_t bytes);
/* Whether a GPU is the current one, and its current stream; false where that cannot be told. */
bool device_is_current(int device);
bool device_stream(int device, void **stream);

/* -- products.c --------------------------------------------------------------------------------- */
extern PyTypeObject OutProduct_Type;

/* -- shims.c ------------------------------------------------------------------------------------ */
extern PyTypeObject Shim_Type;
extern PyMethodDef shims_functions[];

/* -- views.c ------------------------------------------------------------------------------------ */
extern PyTypeObject View_Type;

/* -- written.c ---------------------------------------------------------------------------------- */
extern PyTypeObject WrittenCall_Type;

/* -- around.c ----------------------------------------------------------------------------------- */
extern PyTypeObject GradOff_Type, Planned_Type;
extern PyMethodDef around_functions[];
/* -- operation_type.c --------------------------------------------------------------------------- */
extern PyTypeObject Operation_Type;

/* -- device_graph.c ----------------------------------------------------------------------------- */
extern PyTypeObject DeviceGraph_Type;
extern PyMethodDef device_graph_functions[];

/* A kernel that the driver has launched: the first `nbuffers` parameters are addresses, each stands in 8 bytes. */
typedef struct {
    void *stream, *function;
    unsigned programs, threads, shared;
    Py_ssize_t nparameters, nbuffers;
    void *const *parameters;
} DeviceLaunch;
/* Tell the recording that this thread makes, if it makes one: of a launch; that there was one of which nothing is known. */
void device_graph_note(const DeviceLaunch *launch);
void device_graph_missed(void);
/* Whether this thread makes one. */
bool device_graph_records(void);

/* -- device_run.c ------------------------------------------------------------------------------- */
extern PyTypeObject DeviceRun_Type;
extern PyMethodDef device_row_functions[]; /* device_row.c */

/* -- module.c ----------------------------------------------------------------------------------- */
/* A function of a Python module of this package; new reference. */
PyObject *package_function(const char *module, const char *name);

#endif
