/* Python extension module with the machine code of compiled functions: numba's runtime functions, and calls from Python.

   `machine_code.py` appends a function `take_*` for each entry, and the table of entries. The module uses Python's
   stable ABI; numba's code for errors also uses PyUnicode_FromKindAndData. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Functions that numba's code calls for the memory of arrays. It knows the layout of `Memory`. */

typedef void (*destructor_of_data)(void *data, size_t size, void *info);
typedef struct {
    size_t references;
    destructor_of_data destructor;
    void *info;
    void *data;
    size_t size;
    void *allocator;
} Memory;

static Memory *memory_of(void *base, void *data, size_t size)
{
    Memory *memory = base;
    *memory = (Memory){1, NULL, NULL, data, size, NULL};
    return memory;
}

void *NRT_Allocate(size_t size) { return malloc(size ? size : 1); }
void NRT_Free(void *data) { free(data); }

void *NRT_MemInfo_alloc_aligned(size_t size, unsigned alignment)
{
    char *base = malloc(sizeof(Memory) + size + alignment);
    if (base == NULL)
        return NULL;
    uintptr_t data = (uintptr_t)base + sizeof(Memory) + alignment - 1;
    return memory_of(base, (void *)(data - data % alignment), size);
}

void *NRT_MemInfo_alloc(size_t size) { return NRT_MemInfo_alloc_aligned(size, 64); }
void numba_fatal_error(void) { abort(); }

void NRT_MemInfo_call_dtor(void *of)
{
    Memory *memory = of;
    if (memory->destructor)
        memory->destructor(memory->data, memory->size, memory->info);
    free(memory);
}

static void free_varying(void *data, size_t size, void *info)
{
    (void)size;
    if (info)
        ((void (*)(void *))info)(data);
    free(data);
}

void *NRT_MemInfo_new_varsize_dtor(size_t size, void *destructor)
{
    void *base = malloc(sizeof(Memory)), *data = NRT_Allocate(size);
    if (base == NULL || data == NULL) {
        free(base);
        free(data);
        return NULL;
    }
    Memory *memory = memory_of(base, data, size);
    memory->destructor = free_varying;
    memory->info = destructor;
    return memory;
}

void *NRT_MemInfo_new_varsize(size_t size) { return NRT_MemInfo_new_varsize_dtor(size, NULL); }

void *NRT_MemInfo_varsize_realloc(void *of, size_t size)
{
    Memory *memory = of;
    void *data = realloc(memory->data, size ? size : 1);
    if (data == NULL)
        return NULL;
    memory->data = data;
    memory->size = size;
    return data;
}

/* Arrays are in C order, and so is the new shape. An empty array may have any strides. */
int numba_attempt_nocopy_reshape(npy_intp nd, const npy_intp *shape, const npy_intp *strides, npy_intp new_nd, const npy_intp *new_shape,
                                 npy_intp *new_strides, npy_intp itemsize, int is_f_order)
{
    npy_intp size = 1, new_size = 1, i;
    int ordered = !is_f_order;
    for (i = nd - 1; i >= 0; i--) {
        ordered = ordered && (shape[i] == 1 || strides[i] == size * itemsize);
        size *= shape[i];
    }
    for (i = new_nd - 1; i >= 0; i--) {
        new_strides[i] = new_size * itemsize;
        new_size *= new_shape[i];
    }
    return size == new_size && (ordered || size == 0);
}

/* Errors of functions that compiled code calls by address are printed, as numba does. */

void numba_gil_ensure(int *state) { *state = (int)PyGILState_Ensure(); }
void numba_gil_release(int *state) { PyGILState_Release((PyGILState_STATE)*state); }

static PyObject *unpickle(const char *bytes, Py_ssize_t size)
{
    PyObject *module = PyImport_ImportModule("pickle"), *result = NULL;
    if (module != NULL)
        result = PyObject_CallMethod(module, "loads", "y#", bytes, size);
    Py_XDECREF(module);
    return result;
}

PyObject *numba_unpickle(const char *bytes, int size, const char *digest)
{
    (void)digest;
    return unpickle(bytes, size);
}

PyObject *numba_runtime_build_excinfo_struct(PyObject *arguments, PyObject *info)
{
    (void)arguments, (void)info;
    PyErr_SetString(PyExc_SystemError, "compiled code failed");
    return NULL;
}

/* Set if memory was insufficient for a decomposition. Its return value cannot tell: numba's code aborts the process if it is negative,
   and raises a numerical error if it is positive. */
static _Thread_local int out_of_memory;

int numba_do_raise(PyObject *exception)
{
    if (out_of_memory) {
        out_of_memory = 0;
        PyErr_NoMemory();
    }
    else if (PyTuple_Check(exception) && PyTuple_Size(exception) >= 2) {
        PyObject *class = PyTuple_GetItem(exception, 0), *arguments = PyTuple_GetItem(exception, 1);
        if (arguments == Py_None)
            PyErr_SetNone(class);
        else
            PyErr_SetObject(class, arguments);
    }
    else if (PyExceptionClass_Check(exception))
        PyErr_SetNone(exception);
    Py_DECREF(exception);
    return 0;
}

/* Linear algebra for matrices of doubles ('d') and floats ('s'): scipy's functions under numba's names, with Fortran's arguments. */

enum { DOT, GEMV, GEMM, GETRF, GETRI, SYEVD, N_OF_SCIPY };
static const char *const scipy_names[] = {"dot", "gemv", "gemm", "getrf", "getri", "syevd"};
static void *scipy[N_OF_SCIPY][2];

static void *find_function(PyObject *module, const char *prefix, const char *name)
{
    char full[16];
    PyOS_snprintf(full, sizeof full, "%s%s", prefix, name);
    PyObject *functions = PyObject_GetAttrString(module, "__pyx_capi__");
    PyObject *capsule = functions ? PyMapping_GetItemString(functions, full) : NULL;
    const char *signature = capsule ? PyCapsule_GetName(capsule) : NULL;
    void *function = NULL;
    if (signature && strstr(signature, " int *"))
        function = PyCapsule_GetPointer(capsule, signature);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "the linear algebra of scipy takes other integers than those of 32 bits");
    Py_DecRef(capsule);
    Py_DecRef(functions);
    return function;
}

/* Find scipy's functions. Requires the interpreter lock. Returns 0 and sets an error if they are missing. */
static int has_scipy(void)
{
    static int has;
    PyObject *blas = NULL, *lapack = NULL;
    if (has)
        return 1;
    if ((blas = PyImport_ImportModule("scipy.linalg.cython_blas")) && (lapack = PyImport_ImportModule("scipy.linalg.cython_lapack")))
        for (int i = 0; i < N_OF_SCIPY && !PyErr_Occurred(); i++)
            for (int is_double = 0; is_double < 2 && !PyErr_Occurred(); is_double++)
                scipy[i][is_double] = find_function(i < GETRF ? blas : lapack, is_double ? "d" : "s", scipy_names[i]);
    Py_DecRef(blas);
    Py_DecRef(lapack);
    return has = !PyErr_Occurred();
}

#define SCIPY(type, which)       \
    int is_double = kind == 'd'; \
    type function = (type)scipy[which][is_double];

int numba_xxdot(char kind, char conjugate, Py_ssize_t n, void *x, void *y, void *result)
{
    (void)conjugate;
    SCIPY(void *, DOT)
    int32_t size = (int32_t)n, step = 1;
    if (is_double)
        *(double *)result = ((double (*)(int32_t *, void *, int32_t *, void *, int32_t *))function)(&size, x, &step, y, &step);
    else
        *(float *)result = ((float (*)(int32_t *, void *, int32_t *, void *, int32_t *))function)(&size, x, &step, y, &step);
    return 0;
}

typedef void (*Gemv)(char *, int32_t *, int32_t *, void *, void *, int32_t *, void *, int32_t *, void *, void *, int32_t *);

int numba_xxgemv(char kind, char trans, Py_ssize_t m, Py_ssize_t n, void *alpha, void *a, Py_ssize_t lda, void *x, void *beta, void *y)
{
    SCIPY(Gemv, GEMV)
    int32_t rows = (int32_t)m, columns = (int32_t)n, stride = (int32_t)lda, step = 1;
    function(&trans, &rows, &columns, alpha, a, &stride, x, &step, beta, y, &step);
    return 0;
}

typedef void (*Gemm)(char *, char *, int32_t *, int32_t *, int32_t *, void *, void *, int32_t *, void *, int32_t *, void *, void *, int32_t *);

int numba_xxgemm(char kind, char transa, char transb, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, void *alpha, void *a, Py_ssize_t lda,
                 void *b, Py_ssize_t ldb, void *beta, void *c, Py_ssize_t ldc)
{
    SCIPY(Gemm, GEMM)
    int32_t rows = (int32_t)m, columns = (int32_t)n, inner = (int32_t)k;
    int32_t stride_a = (int32_t)lda, stride_b = (int32_t)ldb, stride_c = (int32_t)ldc;
    function(&transa, &transb, &rows, &columns, &inner, alpha, a, &stride_a, b, &stride_b, beta, c, &stride_c);
    return 0;
}

typedef void (*Getrf)(int32_t *, int32_t *, void *, int32_t *, int32_t *, int32_t *);

int numba_xxgetrf(char kind, Py_ssize_t m, Py_ssize_t n, void *a, Py_ssize_t lda, int32_t *pivots)
{
    SCIPY(Getrf, GETRF)
    int32_t rows = (int32_t)m, columns = (int32_t)n, stride = (int32_t)lda, info = 0;
    function(&rows, &columns, a, &stride, pivots, &info);
    return info;
}

/* Return the workspace size that LAPACK has returned, a number of the matrix's type. */
static int32_t workspace_size(int is_double, const void *asked) { return is_double ? (int32_t) * (const double *)asked : (int32_t) * (const float *)asked; }

typedef void (*Getri)(int32_t *, void *, int32_t *, int32_t *, void *, int32_t *, int32_t *);

int numba_ez_xxgetri(char kind, Py_ssize_t n, void *a, Py_ssize_t lda, int32_t *pivots)
{
    SCIPY(Getri, GETRI)
    int32_t size = (int32_t)n, stride = (int32_t)lda, asking = -1, info = 0;
    double asked = 0.0;
    function(&size, a, &stride, pivots, &asked, &asking, &info);
    int32_t n_work = workspace_size(is_double, &asked);
    void *work = malloc((size_t)n_work * sizeof(double));
    if (work != NULL)
        function(&size, a, &stride, pivots, work, &n_work, &info);
    else
        info = out_of_memory = 1;
    free(work);
    return info;
}

typedef void (*Syevd)(char *, char *, int32_t *, void *, int32_t *, void *, void *, int32_t *, int32_t *, int32_t *, int32_t *);

int numba_ez_xxxevd(char kind, char jobz, char uplo, Py_ssize_t n, void *a, Py_ssize_t lda, void *w)
{
    SCIPY(Syevd, SYEVD)
    int32_t size = (int32_t)n, stride = (int32_t)lda, asking = -1, info = 0, n_integers = 0;
    double asked = 0.0;
    function(&jobz, &uplo, &size, a, &stride, w, &asked, &asking, &n_integers, &asking, &info);
    int32_t n_work = workspace_size(is_double, &asked);
    void *work = malloc((size_t)n_work * sizeof(double));
    int32_t *integers = malloc((size_t)n_integers * sizeof(int32_t));
    if (work != NULL && integers != NULL)
        function(&jobz, &uplo, &size, a, &stride, w, work, &n_work, integers, &n_integers, &info);
    else
        info = out_of_memory = 1;
    free(work);
    free(integers);
    return info;
}

/* Calls from Python. */

typedef struct {
    const char *bytes;
    int32_t size;
    const char *digest;
    void *dynamic;
    int32_t flags;
} Failure;

static PyObject *failed(int32_t status, const Failure *failure)
{
    if (status > 0 && failure != NULL && failure->dynamic == NULL) {
        PyObject *exception = unpickle(failure->bytes, failure->size);
        if (exception != NULL)
            numba_do_raise(exception);
    }
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "compiled code failed");
    return NULL;
}

typedef struct {
    char *data;
    intptr_t size, itemsize, shape[3], strides[3];
} Given;

static int take_array(PyObject *object, char kind, int itemsize, int nd, int writable, Given *given)
{
    if (!PyArray_Check(object))
        return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
    if (PyArray_NDIM(array) != nd || PyArray_DESCR(array)->kind != kind || PyArray_ITEMSIZE(array) != itemsize ||
        !PyArray_CHKFLAGS(array, needed) || !PyArray_ISNOTSWAPPED(array))
        return 0;
    given->data = PyArray_BYTES(array);
    given->size = PyArray_SIZE(array);
    given->itemsize = itemsize;
    for (int i = 0; i < nd; i++) {
        given->shape[i] = PyArray_DIM(array, i);
        given->strides[i] = PyArray_STRIDE(array, i);
    }
    return 1;
}

static int is_integer(PyObject *object) { return (PyLong_Check(object) && !PyBool_Check(object)) || PyArray_IsScalar(object, Integer); }

static __attribute__((unused)) int take_i8(PyObject *object, int lenient, int64_t *given)
{
    (void)lenient;
    if (!is_integer(object))
        return 0;
    PyObject *number = PyNumber_Index(object);
    *given = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return !(*given == -1 && PyErr_Occurred()) || (PyErr_Clear(), 0);
}

static __attribute__((unused)) int take_u8(PyObject *object, int lenient, uint64_t *given)
{
    (void)lenient;
    if (!is_integer(object))
        return 0;
    PyObject *number = PyNumber_Index(object);
    *given = number ? PyLong_AsUnsignedLongLong(number) : (uint64_t)-1;
    Py_XDECREF(number);
    return !(*given == (uint64_t)-1 && PyErr_Occurred()) || (PyErr_Clear(), 0);
}

static __attribute__((unused)) int take_f8(PyObject *object, int lenient, double *given)
{
    if (!PyFloat_Check(object) && !(lenient && (is_integer(object) || PyArray_IsScalar(object, Floating))))
        return 0;
    *given = PyFloat_AsDouble(object);
    return !(*given == -1.0 && PyErr_Occurred()) || (PyErr_Clear(), 0);
}

static __attribute__((unused)) int take_f4(PyObject *object, int lenient, float *given)
{
    double number;
    (void)lenient;
    if (!PyArray_IsScalar(object, Float32))
        return 0;
    number = PyFloat_AsDouble(object);
    *given = (float)number;
    return !(number == -1.0 && PyErr_Occurred()) || (PyErr_Clear(), 0);
}

static __attribute__((unused)) int take_b1(PyObject *object, int lenient, int8_t *given)
{
    (void)lenient;
    if (!PyBool_Check(object) && !PyArray_IsScalar(object, Bool))
        return 0;
    *given = (int8_t)PyObject_IsTrue(object);
    return 1;
}

static __attribute__((unused)) int is_tuple(PyObject *object, Py_ssize_t size) { return PyTuple_Check(object) && PyTuple_Size(object) == size; }

/* Returns 0 if the arguments have other types, or 1 if the function was called; `result` is NULL if it raised an error. */
typedef int (*Take)(PyObject *args, int lenient, PyObject **result);
typedef struct {
    const char *place, *signature;
    Take take;
    void *address;
    int needs_scipy;
} Entry;

static const Entry entries[];
static const int n_entries;

typedef struct {
    PyObject_HEAD
    int first, end;
} Function;

static PyObject *new_function(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    const char *place;
    if (!PyTuple_Check(args) || PyTuple_Size(args) < 1 || (place = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(args, 0), NULL)) == NULL) {
        PyErr_SetString(PyExc_TypeError, "a function has a place");
        return NULL;
    }
    (void)keywords;
    Function *self = (Function *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    int first = 0;
    while (first < n_entries && strcmp(entries[first].place, place) != 0)
        first++;
    self->first = self->end = first;
    while (self->end < n_entries && strcmp(entries[self->end].place, place) == 0)
        self->end++;
    return (PyObject *)self;
}

static PyObject *call_function(PyObject *of, PyObject *args, PyObject *keywords)
{
    Function *self = (Function *)of;
    PyObject *result;
    if (keywords == NULL || PyDict_Size(keywords) == 0)
        for (int lenient = 0; lenient < 2; lenient++)
            for (int i = self->first; i < self->end; i++)
                if (entries[i].take(args, lenient, &result))
                    return result;
    PyObject *other = PyObject_GetAttrString(of, "dispatcher");
    if (other == NULL)
        return NULL;
    result = PyObject_Call(other, args, keywords);
    Py_DECREF(other);
    return result;
}

static PyObject *address_of(PyObject *of, PyObject *signature)
{
    Function *self = (Function *)of;
    const char *text = PyUnicode_AsUTF8AndSize(signature, NULL);
    if (text == NULL)
        return NULL;
    for (int i = self->first; i < self->end; i++)
        if (strcmp(entries[i].signature, text) == 0)
            return !entries[i].needs_scipy || has_scipy() ? PyLong_FromVoidPtr(entries[i].address) : NULL;
    return PyLong_FromLong(0);
}

static PyMethodDef methods_of_function[] = {
    {"shipped_entry", address_of, METH_O, "Return the address of the machine code for a signature; 0 if it has none."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots_of_function[] = {
    {Py_tp_new, new_function},
    {Py_tp_call, call_function},
    {Py_tp_methods, methods_of_function},
    {Py_tp_doc, "A function with machine code."},
    {0, NULL},
};
static PyType_Spec function = {
    "streamsvm.core.compiling._machine_code.Function", sizeof(Function), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots_of_function,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_machine_code", "Machine code.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__machine_code(void)
{
    import_array();
#ifdef LEVEL
    if (!__builtin_cpu_supports(LEVEL)) {
        PyErr_SetString(PyExc_ImportError, "the processor is none of " LEVEL);
        return NULL;
    }
#endif
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&function);
    if (made == NULL || type == NULL || PyModule_AddObject(made, "Function", type) < 0)
        return NULL;
    return made;
}
