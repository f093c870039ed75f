/* The module: its types and functions. */
#include "guards.h"

PyObject *
package_function(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *function = imported != NULL ? PyObject_GetAttrString(imported, name) : NULL;
    Py_XDECREF(imported);
    return function;
}

static PyObject *
default_repr(PyObject *self)
{
    return PyUnicode_FromString("braze.native.DEFAULT");
}

static PyTypeObject Default_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze.native._native.Default",
    .tp_doc = "The answer of a handler that asks for a frame to be evaluated normally.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_repr = default_repr,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "braze.native._native",
    .m_doc = "The frame hook, the guard walker, the entry and the launcher.",
    .m_size = -1,
};

static int
fill_module(PyObject *module)
{
    struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {
        {"GuardProgram", &GuardProgram_Type},
        {"Entry", &Entry_Type},
        {"CallOfClass", &CallOfClass_Type},
        {"Launcher", &Launcher_Type},
        {"Segment", &Segment_Type},
        {"DeviceLauncher", &DeviceLauncher_Type},
        {"DeviceRun", &DeviceRun_Type},
        {"DeviceGraph", &DeviceGraph_Type},
        {"OutProduct", &OutProduct_Type},
        {"Shim", &Shim_Type},
        {"View", &View_Type},
        {"WrittenCall", &WrittenCall_Type},
        {"GradOff", &GradOff_Type},
        {"Planned", &Planned_Type},
        {"Operation", &Operation_Type},
        {"Holders", &Holders_Type},
        {"Replay", &Replay_Type},
        {"Replays", &Replays_Type},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (PyType_Ready(types[i].type) < 0
            || PyModule_AddObjectRef(module, types[i].name, (PyObject *)types[i].type) < 0) {
            return -1;
        }
    }
    if (default_marker == NULL
        && (PyType_Ready(&Default_Type) < 0 || (default_marker = PyObject_New(PyObject, &Default_Type)) == NULL)) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "DEFAULT", default_marker) < 0
                   || PyModule_AddFunctions(module, hook_methods) < 0
                   || PyModule_AddFunctions(module, resumed_methods) < 0
                   || PyModule_AddFunctions(module, tensor_methods) < 0
                   || PyModule_AddFunctions(module, libtorch_methods) < 0
                   || PyModule_AddFunctions(module, image_methods) < 0
                   || PyModule_AddFunctions(module, entry_functions) < 0
                   || PyModule_AddFunctions(module, tracers_functions) < 0
                   || PyModule_AddFunctions(module, ranges_functions) < 0
                   || PyModule_AddFunctions(module, addresses_functions) < 0
                   || PyModule_AddFunctions(module, builtins_functions) < 0
                   || PyModule_AddFunctions(module, table_functions) < 0
                   || PyModule_AddFunctions(module, allocation_functions) < 0
                   || PyModule_AddFunctions(module, numbers_functions) < 0
                   || PyModule_AddFunctions(module, around_functions) < 0
                   || PyModule_AddFunctions(module, shims_functions) < 0
                   || PyModule_AddFunctions(module, device_launch_functions) < 0
                   || PyModule_AddFunctions(module, device_graph_functions) < 0
                   || PyModule_AddFunctions(module, device_row_functions) < 0
                   || PyModule_AddFunctions(module, holders_functions) < 0
                   || PyModule_AddFunctions(module, held_functions) < 0
               ? -1
               : 0;
}

__attribute__((visibility("default"))) PyObject *
PyInit__native(void)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "braze's extension serves the main interpreter only");
        return NULL;
    }
    if (hook_init() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && fill_module(module) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
