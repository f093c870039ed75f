/* Relations between sizes: postfix programs over 64-bit integers (see braze/native/relation.py). */
#include "guards.h"

#include <math.h>

enum {
    OP_CONST, OP_SYMBOL, OP_ADD, OP_SUB, OP_MUL, OP_FLOORDIV, OP_MOD, OP_NEG, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE,
    OP_AND, OP_OR, OP_NOT, OP_MIN, OP_MAX, OP_ABS, /* of floats, by their bits: */
    OP_FADD, OP_FSUB, OP_FMUL, OP_FDIV, OP_FPOW, OP_FNEG, OP_FABS, OP_FSQRT, OP_FEXP, OP_FLOG, OP_FEQ, OP_FNE, OP_FLT, OP_FLE,
    OP_FGT, OP_FGE, OP_FFINITE, OP_COUNT
};
enum { DEPTH = 32 };

static bool
of_one(int op)
{
    return op == OP_NEG || op == OP_NOT || op == OP_ABS || (op >= OP_FNEG && op <= OP_FLOG) || op == OP_FFINITE;
}

static double
as_float(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One operation on floats; false where Python has to say: what raises there, or gives no finite number. */
static bool
on_floats(int op, int64_t left, int64_t right, int64_t *result)
{
    double a = as_float(left), b = as_float(right), made;
    switch (op) {
    case OP_FEQ: return *result = a == b, true;
    case OP_FNE: return *result = a != b, true;
    case OP_FLT: return *result = a < b, true;
    case OP_FLE: return *result = a <= b, true;
    case OP_FGT: return *result = a > b, true;
    case OP_FGE: return *result = a >= b, true;
    case OP_FFINITE: return *result = isfinite(b), true;
    case OP_FADD: made = a + b; break;
    case OP_FSUB: made = a - b; break;
    case OP_FMUL: made = a * b; break;
    case OP_FDIV: made = b != 0 ? a / b : NAN; break;
    case OP_FPOW: made = a > 0 ? pow(a, b) : NAN; break;
    case OP_FNEG: made = -b; break;
    case OP_FABS: made = fabs(b); break;
    case OP_FSQRT: made = b >= 0 ? sqrt(b) : NAN; break;
    case OP_FEXP: made = exp(b); break;
    default: made = b > 0 ? log(b) : NAN; break; /* OP_FLOG */
    }
    memcpy(result, &made, sizeof made);
    return isfinite(made);
}

/* Whether a program keeps within its stack and symbols and leaves one value. */
static bool
well_formed(const RelationStep *step, int count, int nsymbols)
{
    int depth = 0;
    for (int i = 0; i < count; i++) {
        int op = step[i].op;
        if (op == OP_CONST || op == OP_SYMBOL) {
            if (++depth > DEPTH || (op == OP_SYMBOL && (step[i].number < 0 || step[i].number >= nsymbols))) {
                return false;
            }
        }
        else if (op >= 0 && op < OP_COUNT && of_one(op)) {
            if (depth < 1) {
                return false;
            }
        }
        else if (op < 0 || op >= OP_COUNT || --depth < 1) {
            return false;
        }
    }
    return depth == 1;
}

/* The program of a Python relation; none (and no exception) where it has none that is well-formed. */
void
relation_parse(Relation *relation, PyObject *expected, int nsymbols)
{
    relation->count = 0;
    relation->step = NULL;
    PyObject *code = PyObject_GetAttrString(expected, "code");
    if (code == NULL || !PyTuple_Check(code)) {
        PyErr_Clear();
        Py_XDECREF(code);
        return;
    }
    int count = (int)PyTuple_GET_SIZE(code);
    RelationStep *step = PyMem_Calloc(count > 0 ? count : 1, sizeof(RelationStep));
    bool good = step != NULL;
    for (int i = 0; good && i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(code, i);
        good = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2;
        if (good) {
            step[i].op = (int)PyLong_AsLong(PyTuple_GET_ITEM(pair, 0));
            step[i].number = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 1));
            good = !PyErr_Occurred();
        }
    }
    PyErr_Clear();
    Py_DECREF(code);
    if (good && well_formed(step, count, nsymbols)) {
        relation->count = count;
        relation->step = step;
    }
    else {
        PyMem_Free(step);
    }
}

/* What a program comes to; false where Python has to say (overflow, division by zero, a symbol without a value). */
bool
relation_value(const Relation *relation, const Symbols *symbols, int64_t *value)
{
    int64_t stack[DEPTH];
    int top = -1;
    for (const RelationStep *s = relation->step, *end = s + relation->count; s < end; s++) {
        if (s->op == OP_CONST) {
            stack[++top] = s->number;
            continue;
        }
        if (s->op == OP_SYMBOL) {
            if (!symbols->bound[s->number]) {
                return false;
            }
            stack[++top] = symbols->values[s->number];
            continue;
        }
        int64_t b = stack[top], a, r;
        if (s->op >= OP_FADD) {
            top -= !of_one(s->op);
            if (!on_floats(s->op, stack[top], b, &stack[top])) {
                return false;
            }
            continue;
        }
        if (s->op == OP_NEG || s->op == OP_ABS) {
            if (b == INT64_MIN) {
                return false;
            }
            stack[top] = s->op == OP_NEG || b < 0 ? -b : b;
            continue;
        }
        if (s->op == OP_NOT) {
            stack[top] = !b;
            continue;
        }
        a = stack[--top];
        switch (s->op) {
        case OP_ADD:
            if (__builtin_add_overflow(a, b, &r)) {
                return false;
            }
            break;
        case OP_SUB:
            if (__builtin_sub_overflow(a, b, &r)) {
                return false;
            }
            break;
        case OP_MUL:
            if (__builtin_mul_overflow(a, b, &r)) {
                return false;
            }
            break;
        case OP_FLOORDIV:
        case OP_MOD: {
            if (b == 0 || (a == INT64_MIN && b == -1)) {
                return false;
            }
            int64_t q = a / b, m = a % b;
            if (m != 0 && (m < 0) != (b < 0)) { /* as Python: round to minus infinity */
                q--;
                m += b;
            }
            r = s->op == OP_MOD ? m : q;
            break;
        }
        case OP_EQ: r = a == b; break;
        case OP_NE: r = a != b; break;
        case OP_LT: r = a < b; break;
        case OP_LE: r = a <= b; break;
        case OP_GT: r = a > b; break;
        case OP_GE: r = a >= b; break;
        case OP_AND: r = a ? b : a; break;
        case OP_OR: r = a ? a : b; break;
        case OP_MIN: r = a < b ? a : b; break;
        default: r = a > b ? a : b; break; /* OP_MAX */
        }
        stack[top] = r;
    }
    *value = stack[0];
    return true;
}

/* 1: holds, 0: does not, -1: Python has to say. */
int
relation_holds(const Relation *relation, const Symbols *symbols)
{
    int64_t value;
    return relation_value(relation, symbols, &value) ? value != 0 : -1;
}
