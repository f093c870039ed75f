/* Images: the words of a tensor that decide its metadata, compared without a call into libtorch.
 *
 * braze/native/layout.py finds the places; what is compared is more than the `tensor` check asks for (flags that
 * say how sizes are to be read among it), so an equal image means equal metadata, and another one means that
 * the tensor is to be asked in the ordinary way.
 */
#include "guards.h"

typedef struct {
    bool known;
    Py_ssize_t handle; /* in the Python object */
    Py_ssize_t ndim, sizes, strides, dtype, keys, autograd; /* in the implementation */
    Py_ssize_t requires_grad, grad_fn;                      /* in what autograd keeps */
    Py_ssize_t window;                                      /* where images begin */
    unsigned long long padding;                             /* the bits of the word `dtype` that nobody sets */
    unsigned long long own; /* with what begins that which autograd keeps of a tensor that is no view */
} Layout;
static Layout layout;

enum { INLINE = 5 };

static inline uint64_t
word_at(const char *address)
{
    return *(const uint64_t *)address;
}

static void
show(Image *image, const char *impl, Py_ssize_t offset, Py_ssize_t words)
{
    for (Py_ssize_t i = 0; i < words; i++) {
        Py_ssize_t place = (offset - layout.window) / 8 + i;
        image->mask[place] = ~(uint64_t)0;
        image->word[place] = word_at(impl + offset + 8 * i);
    }
}

/* Whether a tensor of which autograd keeps something does, or does not, require gradients, told by the words alone but for
 * views, of which the base may. (`places`: the layout, or a copy that is known not to change.) */
static inline __attribute__((always_inline)) bool
kept_tells(const Layout *places, const char *impl, const char *kept, bool requires_grad)
{
    if (kept[places->requires_grad] != 0) {
        return requires_grad;
    }
    if (word_at(kept + places->grad_fn) != 0) {
        return false;
    }
    return requires_grad == (word_at(kept) != places->own && implementation_requires_grad(impl));
}

static bool
told(const char *impl, const char *kept, bool requires_grad)
{
    return kept == NULL ? !requires_grad : kept_tells(&layout, impl, kept, requires_grad);
}

bool
image_take(Image *image, Seen *seen, PyObject *tensor, int requires_grad)
{
    if (!layout.known) {
        return false;
    }
    const char *impl = *(char *const *)((char *)tensor + layout.handle);
    uint64_t ndim = word_at(impl + layout.ndim);
    if (ndim > INLINE) {
        return false;
    }
    seen->object = tensor;
    seen->impl = impl;
    seen->kept = *(char *const *)(impl + layout.autograd);
    if (requires_grad >= 0 && !told(impl, seen->kept, requires_grad)) {
        return false;
    }
    memset(image, 0, sizeof(*image));
    image->type = Py_TYPE(tensor);
    image->requires_grad = requires_grad;
    show(image, impl, layout.ndim, 1);
    show(image, impl, layout.sizes, (Py_ssize_t)ndim);
    show(image, impl, layout.strides, (Py_ssize_t)ndim);
    show(image, impl, layout.dtype, 1);
    image->mask[(layout.dtype - layout.window) / 8] &= ~layout.padding;
    image->word[(layout.dtype - layout.window) / 8] &= ~layout.padding;
    show(image, impl, layout.keys, 1);
    return true;
}

/* As wide as AVX2's: wider ones than the processor's are kept in memory from tensor to tensor, and to AVX-512 it makes no
 * difference; what takes the time is to get at the tensors. */
enum { LANES = 4 };
typedef uint64_t Lanes __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

/* (By address: how vectors are handed on depends on the processor.) */
static inline __attribute__((always_inline)) bool
any_bit(const Lanes *lanes)
{
    uint64_t bits = 0;
    for (int i = 0; i < LANES; i++) {
        bits |= (*lanes)[i];
    }
    return bits != 0;
}

static inline __attribute__((always_inline)) bool
window_holds(const Image *image, const char *window)
{
    const Lanes *mask = (const Lanes *)image->mask, *word = (const Lanes *)image->word, *at = (const Lanes *)window;
    Lanes differ = ((at[0] ^ word[0]) & mask[0]) | ((at[1] ^ word[1]) & mask[1]) | ((at[2] ^ word[2]) & mask[2])
                   | ((at[3] ^ word[3]) & mask[3]);
    return !any_bit(&differ);
}

bool
image_holds(const Image *image, PyObject *tensor)
{
    if (Py_TYPE(tensor) != image->type) {
        return false;
    }
    const char *impl = *(char *const *)((char *)tensor + layout.handle);
    return window_holds(image, impl + layout.window)
           && (image->requires_grad < 0 || told(impl, *(char *const *)(impl + layout.autograd), image->requires_grad));
}

Image *
image_again(Image *image, PyObject *tensor, int requires_grad)
{
    Seen seen;
    if (image == NULL && (image = PyMem_Malloc(sizeof(Image))) == NULL) {
        return NULL;
    }
    if (!image_take(image, &seen, tensor, requires_grad)) {
        PyMem_Free(image);
        return NULL;
    }
    return image;
}

/* -- many at once ---------------------------------------------------------------------------------- */

/* What is asked of that which autograd keeps. */
enum { NOTHING = -1, FROZEN, REQUIRES_GRAD };

/* Each address is read from only after the word that keeps it alive was found unchanged. What differs in the windows
 * is gathered up and looked at once, at the end. */
static inline __attribute__((always_inline)) bool
all_hold(const Seen *seen, const Seen *end, const Image *image, int asked)
{
    const Layout places = layout;
    const PyTypeObject *type = image->type;
    const Lanes *mask = (const Lanes *)image->mask, *word = (const Lanes *)image->word;
    const Lanes mask_0 = mask[0], mask_1 = mask[1], mask_2 = mask[2], mask_3 = mask[3];
    const Lanes word_0 = word[0], word_1 = word[1], word_2 = word[2], word_3 = word[3];
    Lanes differ = {0};
    for (; seen < end; seen++) {
        const char *impl = seen->impl, *kept = seen->kept;
        if (Py_TYPE(seen->object) != type || *(char *const *)((char *)seen->object + places.handle) != impl
            || *(char *const *)(impl + places.autograd) != kept) {
            return false;
        }
        if (asked != NOTHING && !kept_tells(&places, impl, kept, asked == REQUIRES_GRAD)) {
            return false;
        }
        const Lanes *at = (const Lanes *)(impl + places.window);
        differ |= ((at[0] ^ word_0) & mask_0) | ((at[1] ^ word_1) & mask_1) | ((at[2] ^ word_2) & mask_2)
                  | ((at[3] ^ word_3) & mask_3);
    }
    return !any_bit(&differ);
}

static inline __attribute__((always_inline)) bool
each_holds(const Seen *seen, const Seen *end, const Image *image, int asked)
{
    return asked == NOTHING  ? all_hold(seen, end, image, NOTHING)
           : asked == FROZEN ? all_hold(seen, end, image, FROZEN)
                             : all_hold(seen, end, image, REQUIRES_GRAD);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static bool
each_holds_avx2(const Seen *seen, const Seen *end, const Image *image, int asked)
{
    return each_holds(seen, end, image, asked);
}
#endif

static bool
each_holds_plain(const Seen *seen, const Seen *end, const Image *image, int asked)
{
    return each_holds(seen, end, image, asked);
}

typedef bool (*Comparison)(const Seen *, const Seen *, const Image *, int);

static Comparison
comparison(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return each_holds_avx2;
    }
#endif
    return each_holds_plain;
}

int
seen_change(const SeenTensors *tensors, PyObject **places, bool back)
{
    Comparison compare = comparison();
    for (int i = 0; i < tensors->nchunk; i++) {
        const Chunk *chunk = &tensors->chunk[back ? tensors->nchunk - 1 - i : i];
        const Image *image = &tensors->image[chunk->image];
        const Seen *first = &tensors->seen[chunk->first], *end = first + chunk->count;
        int asked = chunk->kept ? image->requires_grad : NOTHING; /* where it keeps nothing, nothing is */
        if (!compare(first, end, image, asked)) {
            for (const Seen *seen = first; seen < end; seen++) {
                if (!compare(seen, seen + 1, image, asked)) {
                    return (int)(seen - tensors->seen);
                }
            }
        }
        for (const Seen *seen = first; seen < end; seen++) {
            if (seen->place >= 0) {
                places[seen->place] = Py_NewRef(seen->object);
            }
        }
    }
    return -1;
}

/* -- version counters ------------------------------------------------------------------------------ */

static struct {
    bool known;
    Py_ssize_t pointer, number;
} counter;

/* Where the counter of a tensor is; NULL where that is not known, or it has none. */
static const char *
counter_place(PyObject *tensor)
{
    const char *impl = counter.known && is_tensor(tensor) ? *(char *const *)((char *)tensor + layout.handle) : NULL;
    return impl != NULL ? *(char *const *)(impl + counter.pointer) : NULL;
}

/* Through Python where it is not known where counters stand, or a tensor has none. */
static PyObject *
counters(PyObject *module, PyObject *tensors)
{
    const char *place;
    enum { SIZE = sizeof(place) + sizeof(uint32_t) };
    if (!PyTuple_Check(tensors)) {
        PyErr_Format(PyExc_TypeError, "counters takes a tuple of tensors, not %.100s", Py_TYPE(tensors)->tp_name);
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(tensors), i = counter.known ? 0 : -1;
    PyObject *found = PyBytes_FromStringAndSize(NULL, count * SIZE);
    if (found == NULL) {
        return NULL;
    }
    for (; i >= 0 && i < count; i++) {
        if ((place = counter_place(PyTuple_GET_ITEM(tensors, i))) == NULL) {
            break;
        }
        char *told = PyBytes_AS_STRING(found) + i * SIZE;
        memcpy(told, &place, sizeof(place));
        memcpy(told + sizeof(place), place + counter.number, sizeof(uint32_t));
    }
    if (i == count) {
        return found;
    }
    Py_DECREF(found);
    PyObject *plainly = package_function("braze.native.torch_state", "counters");
    PyObject *answer = plainly != NULL ? PyObject_CallOneArg(plainly, tensors) : NULL;
    Py_XDECREF(plainly);
    return answer;
}

/* -- for calibration ------------------------------------------------------------------------------- */

static bool
fits(Py_ssize_t offset, Py_ssize_t words)
{
    Py_ssize_t first = offset - layout.window;
    return first >= 0 && first % 8 == 0 && first + 8 * words <= 8 * IMAGE_WORDS;
}

static PyObject *
configure_layout(PyObject *module, PyObject *args)
{
    layout.known = false;
    if (PyTuple_GET_SIZE(args) == 0) {
        Py_RETURN_FALSE;
    }
    if (!PyArg_ParseTuple(args, "nnnnnKnnnnK:_configure_layout", &layout.handle, &layout.ndim, &layout.sizes,
                          &layout.strides, &layout.dtype, &layout.padding, &layout.keys, &layout.autograd,
                          &layout.requires_grad, &layout.grad_fn, &layout.own)) {
        return NULL;
    }
    layout.window = layout.keys + 8 - 8 * IMAGE_WORDS;
    layout.known = layout.window >= 0 && fits(layout.ndim, 1) && fits(layout.sizes, INLINE)
                   && fits(layout.strides, INLINE) && fits(layout.dtype, 1) && layout.autograd % 8 == 0
                   && layout.grad_fn % 8 == 0;
    return PyBool_FromLong(layout.known);
}

static PyObject *
configure_counter(PyObject *module, PyObject *args)
{
    counter.known = false;
    if (PyTuple_GET_SIZE(args) > 0) {
        if (!PyArg_ParseTuple(args, "nn:_configure_counter", &counter.pointer, &counter.number)) {
            return NULL;
        }
        counter.known = layout.handle > 0;
    }
    return PyBool_FromLong(counter.known);
}

/* Whether an image of one tensor is also one of another; None where no image can be taken. */
static PyObject *
same_image(PyObject *module, PyObject *args)
{
    PyObject *first, *second;
    Image image;
    Seen seen;
    int requires_grad;
    if (!PyArg_ParseTuple(args, "OOi:_same_image", &first, &second, &requires_grad)) {
        return NULL;
    }
    if (!image_take(&image, &seen, first, requires_grad)) {
        Py_RETURN_NONE;
    }
    return PyBool_FromLong(image_holds(&image, second));
}

PyMethodDef image_methods[] = {
    {"_configure_layout", configure_layout, METH_VARARGS,
     "Offsets of the tensor in its object, then as in layout.Layout; whether images can be taken so."},
    {"_configure_counter", configure_counter, METH_VARARGS, "Offsets as in layout.Counter."},
    {"counters", counters, METH_O,
     "counters(tensors)\n--\n\nThe version counters of a tuple of tensors, twelve bytes each: which it is, as long as it lives, and its number."},
    {"_same_image", same_image, METH_VARARGS, "Whether the metadata of two tensors look the same from their words."},
    {NULL},
};
