/* Layouts that operators see tensors in: products.c and views.c. */
#ifndef BRAZE_VIEWS_H
#define BRAZE_VIEWS_H

#include "ways.h"

/* Parse (sizes, strides, offset from where the tensor begins); false with an exception set. */
bool layout_parse(PyObject *row, ViewLayout *layout);

#endif
