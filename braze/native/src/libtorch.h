/* What is bound of libtorch, and what may be read by it: shared by tensor.c, tensor_check.c and torch_state.c. */
#ifndef BRAZE_LIBTORCH_H
#define BRAZE_LIBTORCH_H

#include "braze.h"

typedef int32_t (*GetInt32)(void *, int32_t *);
typedef int32_t (*GetInt64)(void *, int64_t *);
typedef int32_t (*GetPointer)(void *, void **);

/* Functions that libtorch exports; NULL where it has none of that name. */
typedef struct {
    GetInt32 get_dtype, get_device_type, get_device_index;
    GetInt64 get_dim, get_storage_offset, get_storage_size;
    GetPointer get_sizes, get_strides, get_data_ptr;
    bool (*requires_grad)(const void *); /* of a TensorImpl */
    bool (*grad_mode)(void);
    bool (*inference_mode)(void);
    bool (*autocast_enabled)(int8_t);
    int8_t (*autocast_dtype)(int8_t);
    bool (*autocast_cache)(void);
    int8_t (*default_dtype)(void);
    int64_t (*function_modes)(void);
    int64_t (*dispatch_modes)(void);
    void *(*context)(void);
    bool (*deterministic)(const void *);
} LibTorch;

/* What calibration has switched on. */
typedef struct {
    PyTypeObject *tensor_type; /* NULL: no reading of tensors */
    Py_ssize_t handle_offset;  /* of the at::Tensor in its Python object */
    Py_ssize_t keys_offset;    /* in a TensorImpl; -1: they are not read */
    bool requires_grad;
    unsigned int states; /* bits 1 << STATE_... */
} Readings;

/* hidden, so that other files reach them as directly as their own */
extern __attribute__((visibility("hidden"))) LibTorch torch;
extern __attribute__((visibility("hidden"))) Readings readings;

static inline void *
handle_of(PyObject *tensor)
{
    return (char *)tensor + readings.handle_offset;
}

static inline uint64_t
keys_of(void *handle)
{
    return *(uint64_t *)(*(char **)handle + readings.keys_offset);
}

#endif
