"""Programs that attack: each class of the threat model at least once."""

from __future__ import annotations

from tests.workers.sandbox.attack import (
    ERROR,
    KILLED,
    MEMORY,
    NOT_LITERAL,
    OK,
    REJECTED,
    TIMEOUT,
    TOO_LARGE,
    WAVERS,
    attack,
    plain,
)

RESOURCES = [
    attack(1, "busy loop", "while True: pass", TIMEOUT),
    attack(2, "sleep", "time.sleep(1000)", ERROR),
    attack(2, "deadlock", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()", KILLED, TIMEOUT),
    attack(3, "huge string", "return len('a' * (1 << 40))", MEMORY),
    attack(4, "list growth", "x = [0]\nwhile True: x += x", MEMORY, TIMEOUT),
    attack(4, "many small objects", "x = []\nwhile True: x.append([len(x)])", MEMORY, TIMEOUT),
    attack(5, "big integer", "return 9 ** 9 ** 9 % 7", MEMORY, TIMEOUT),
    attack(6, "fork bomb", "while True: os.fork()", KILLED),
    attack(6, "fork without the library", "call(57)\nreturn 'GOT a process'", KILLED),
    attack(7, "threads", "import threading\nthreading.Thread(target=print).start()\nreturn 'GOT a thread'", KILLED),
    attack(
        8,
        "C stack",
        "import itertools\nx = iter([])\nfor _ in range(3_000_000): x = itertools.chain(x)\nreturn next(x)",
        KILLED,
        MEMORY,
        TIMEOUT,
    ),
    attack(8, "recursion", "return f(c)", ERROR),
    attack(8, "recursion without limit", "sys.setrecursionlimit(10**9)\nreturn f(c)", KILLED, MEMORY, TIMEOUT),
    plain(9, "nested source", "def f(c): return " + "(" * 20_000 + ")" * 20_000, REJECTED),
    plain(9, "nested operators", "def f(c): return " + "-" * 60_000 + "1", REJECTED, KILLED),
    plain(9, "nested blocks", "".join(" " * n + "if 1:\n" for n in range(300)), REJECTED),
    plain(10, "constant folding", "def f(c): return len(('a' * 4096 * 4096 * 4096) * 4096)", MEMORY),
    plain(10, "constant power", "def f(c): return 2 ** 2 ** 2 ** 2 ** 2 ** 2 % 3", MEMORY, TIMEOUT),
    attack(11, "backtracking regex", "import re\nreturn bool(re.match('(a+)+$', 'a' * 60 + 'b'))", TIMEOUT),
    attack(12, "integer digits", "return int('9' * 1_000_000)", ERROR),
    attack(12, "integer digits unlimited", "sys.set_int_max_str_digits(0)\nreturn str(1 << 2**26)", TIMEOUT, MEMORY),
    attack(13, "flood on the result pipe", "while True: os.write(3, b'x' * 65536)", KILLED),
    attack(13, "great frame", "os.write(3, bytes(32) + b'\\xff' * 4)\nwhile True: os.write(3, bytes(9999))", KILLED),
    attack(14, "flood on stdout", "while True: os.write(1, b'x' * 65536)", TIMEOUT),
    attack(14, "print", "for n in range(10_000): print('x' * 1000, file=sys.stderr)\nreturn 1", OK),
    attack(
        15,
        "ignored limit signal",
        "for n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\nwhile True: pass",
        TIMEOUT,
    ),
    attack(16, "stops itself", "os.kill(os.getpid(), signal.SIGSTOP)", KILLED),
    attack(16, "raises stop", "signal.raise_signal(signal.SIGSTOP)", KILLED),
    attack(13, "output of a megabyte", "return 'x' * (1 << 20)", TOO_LARGE),
    attack(13, "output of many values", "return [0] * 20_000", TOO_LARGE),
    attack(13, "output that holds itself", "x = []\nx.append(x)\nreturn x", TOO_LARGE),
]

SYSTEM = [
    attack(17, "reads a file", "return 'GOT ' + open(c['file']).read()", ERROR),
    attack(17, "reads by descriptor", "return 'GOT ' + str(os.read(os.open(c['file'], 0), 99))", ERROR),
    attack(17, "reads by openat2", "call(437, -100, c['file'].encode(), bytes(24), 24)\nreturn 'GOT open'", ERROR),
    attack(
        17,
        "inherited descriptors",
        """
for fd in range(3, 1024):
    try:
        if fd != 3 and os.fstat(fd): return f'GOT descriptor {fd}'
    except OSError: pass
""",
        OK,
    ),
    attack(18, "writes a file", "open(c['file'], 'w').write('owned')\nreturn 'GOT write'", ERROR),
    attack(18, "makes a file", "open(c['dir'] + '/new', 'w').write('owned')\nreturn 'GOT file'", ERROR),
    attack(19, "lists a directory", "return 'GOT ' * bool(os.listdir(c['dir']))", ERROR),
    attack(19, "lists the root", "return 'GOT ' * bool(os.listdir('/'))", ERROR),
    attack(20, "unlinks", "os.unlink(c['file'])\nreturn 'GOT unlink'", ERROR),
    attack(20, "renames", "os.rename(c['file'], c['dir'] + '/moved')\nreturn 'GOT rename'", ERROR),
    attack(21, "changes a mode", "os.chmod(c['file'], 0)\nreturn 'GOT chmod'", ERROR),
    attack(
        22,
        "reads the environment",
        """
found = str(dict(os.environ))
for place in ('self', c['parent'], c['victim']):
    try: found += open(f'/proc/{place}/environ').read()
    except OSError: pass
return 'GOT environment' if 'CANARY' in found else found
""",
        OK,
    ),
    attack(23, "memory of process 1", "return 'GOT ' + str(os.open('/proc/1/mem', os.O_RDWR))", ERROR),
    attack(23, "memory of the caller", "return 'GOT ' + str(os.open('/proc/%d/mem' % c['parent'], 0))", ERROR),
    attack(23, "own memory", "return 'GOT ' + str(os.open('/proc/self/mem', os.O_RDWR))", ERROR),
    attack(24, "connects", "socket.create_connection(('127.0.0.1', c['port']), 1)\nreturn 'GOT connected'", ERROR),
    attack(
        24,
        "sends a datagram",
        """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b'x', ('127.0.0.1', c['port']))
return 'GOT datagram'
""",
        ERROR,
    ),
    attack(24, "has a socket", "socket.socket(socket.AF_UNIX)\nreturn 'GOT socket'", ERROR),
    attack(
        25,
        "abstract socket",
        """
s = socket.socket(socket.AF_UNIX)
s.connect('\\0' + c['abstract'])
return 'GOT abstract socket'
""",
        ERROR,
    ),
    attack(26, "kills the caller", "os.kill(c['parent'], signal.SIGTERM)\nreturn 'GOT kill'", KILLED),
    attack(26, "kills a neighbour", "os.kill(c['victim'], signal.SIGKILL)\nreturn 'GOT kill'", KILLED),
    attack(26, "kills its zygote", "os.kill(1, 9)\nos.kill(os.getppid(), 9)\nreturn 'x'", KILLED),
    attack(
        26,
        "signals by pidfd",
        """
fd = call(434, c['victim'], 0)
call(424, fd, 9, 0, 0)
return 'GOT kill'
""",
        ERROR,
        KILLED,
    ),
    attack(27, "kills everybody", "os.kill(-1, signal.SIGKILL)\nreturn 'x'", KILLED),
    attack(28, "runs a shell", "os.system(f\"touch {c['dir']}/shell\")\nreturn 'x'", KILLED, OK),
    attack(
        28,
        "runs a process",
        """
import subprocess
subprocess.run(['/bin/sh', '-c', f"touch {c['dir']}/process"])
return 'GOT process'
""",
        KILLED,
        ERROR,
    ),
    attack(28, "posix_spawn", "os.posix_spawn('/bin/true', ['true'], {})\nreturn 'GOT process'", KILLED, ERROR),
    attack(29, "executes", "os.execv('/bin/sh', ['sh', '-c', f\"touch {c['dir']}/exec\"])", KILLED),
    attack(30, "traces its zygote", "call(101, 16, os.getppid() or 1, 0, 0)\nreturn 'GOT ptrace'", KILLED),
    attack(30, "traces a neighbour", "call(101, 16, c['victim'], 0, 0)\nreturn 'GOT ptrace'", KILLED),
    attack(
        30,
        "reads a neighbour",
        """
here = ctypes.create_string_buffer(8)
ours, theirs = (ctypes.c_ulong * 2)(ctypes.addressof(here), 8), (ctypes.c_ulong * 2)(4096, 8)
try:
    call(310, c['victim'], ours, 1, theirs, 1, 0)
except OSError as error:
    if error.errno != 14: raise  # bad address: it was allowed to look
return 'GOT process_vm_readv'
""",
        KILLED,
    ),
    attack(31, "raw system call", "call(257, -100, c['file'].encode(), 0, 0)\nreturn 'GOT open'", ERROR),
    attack(31, "undoes its limits by raw call", "call(302, 0, 9, (ctypes.c_long * 2)(-1, -1), 0)\nreturn 'GOT'", ERROR),
    attack(
        32,
        "undoes the filter",
        """
libc.prctl(4, 1, 0, 0, 0)
libc.prctl(22, 0, 0, 0, 0)
libc.prctl(38, 0, 0, 0, 0)
return 'GOT prctl' if libc.prctl(39, 0, 0, 0, 0) == 0 else ''
""",
        KILLED,
    ),
    attack(33, "executable mapping", "import mmap\nmmap.mmap(-1, 4096, prot=7)\nreturn 'GOT executable memory'", ERROR),
    attack(
        33,
        "memory made executable",
        """
import mmap
m = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(m))
call(10, address, 4096, 7)
return 'GOT executable memory'
""",
        ERROR,
    ),
    attack(34, "memory file", "return f'GOT memory file {os.memfd_create(\"x\")}'", ERROR),
    attack(35, "io_uring", "call(425, 1, bytes(120))\nreturn 'GOT ring'", KILLED),
    attack(36, "userfaultfd", "call(323, 1)\nreturn 'GOT userfaultfd'", KILLED),
    attack(37, "bpf", "call(321, 0, bytes(72), 72)\nreturn 'GOT bpf'", KILLED),
    attack(38, "keyring", "call(250, 0, -3, 1)\nreturn 'GOT keyring'", KILLED),
    attack(38, "adds a key", "call(248, b'user', b'x', b'y', 1, -3)\nreturn 'GOT key'", KILLED),
    attack(39, "x32 system call", "call(0x40000000 + 39)\nreturn 'GOT x32'", KILLED),
    attack(40, "unshares", "call(272, 0x10000000)\nreturn 'GOT namespace'", KILLED),
    attack(40, "mounts", "call(165, b'none', b'/', b'tmpfs', 0, 0)\nreturn 'GOT mount'", KILLED),
    attack(
        41,
        "raises a limit",
        """
for limit in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
    resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
return 'GOT limits'
""",
        ERROR,
    ),
    attack(22, "shared memory of others", "return 'GOT shm' if libc.shmget(c['shm'], 0, 0) >= 0 else ''", OK),
]

REWARD = [
    attack(42, "stray bytes on the pipe", 'os.write(3, b\'["ok",42,"",""]\')\nreturn 1', KILLED),
    attack(43, "guessed nonce", 'os.write(3, bytes(32) + b\'\\0\\0\\0\\x0f["ok",42,"",""]\')\nreturn 1', KILLED),
    attack(
        43,
        "second frame with the true nonce",
        """
frame = sys._getframe()
while 'nonce' not in frame.f_locals: frame = frame.f_back
body = b'["ok",42,"","",null]'
os.write(3, frame.f_locals['nonce'] + len(body).to_bytes(4, 'big') + body)
return 1
""",
        KILLED,
    ),
    attack(44, "closes the pipe", "os.close(3)\nreturn 1", KILLED),
    attack(44, "closes the pipe and stays", "os.close(3)\nwhile True: pass", KILLED),
    attack(45, "leaves early", "os._exit(0)", KILLED),
    attack(45, "leaves by exception", "sys.exit(0)", ERROR),
    attack(46, "object equal to everything", "class E:\n    def __eq__(s, o): return True\nreturn E()", NOT_LITERAL),
    attack(
        46, "number equal to everything", "class E(int):\n    def __eq__(s, o): return True\nreturn E(1)", NOT_LITERAL
    ),
    attack(46, "text of another type", "class E(str):\n    def __repr__(s): return '42'\nreturn [E('x')]", NOT_LITERAL),
    attack(
        47,
        "patched encoder",
        """
codec = sys.modules['inside.codec']
codec.encode = lambda value: '{"a": [1e999]}'
return 1
""",
        KILLED,
    ),
    attack(47, "encoder that nests", "sys.modules['inside.codec'].encode = lambda v: '[' * 500_000\nreturn 1", KILLED),
    attack(
        47,
        "encoder that claims a status",
        """
sys.modules['inside.child'].Outcome.body = lambda *_: b'["nondeterministic",1,"","",null]'
return 1
""",
        KILLED,
    ),
    attack(
        48,
        "hunts for the answer",
        """
words = [o for o in gc.get_objects()] + [v for m in list(sys.modules.values()) for v in vars(m).values()]
frame = sys._getframe()
while frame:
    words += list(frame.f_locals.values())
    frame = frame.f_back
key = c['answer'][::-1]
texts = [w for w in words if type(w) in (str, bytes, bytearray, dict, list) and w is not key]
return 'GOT the answer' * any(key in str(text) for text in texts)
""",
    ),
    attack(
        49,
        "leaves something behind",
        """
import builtins, math
builtins.left = math.left = sys.left = 'behind'
builtins.len = lambda x: 42
math.sqrt = lambda x: 42
sys.modules['json'] = None
sys.setrecursionlimit(100)
return 1
""",
        OK,
        KILLED,
    ),
    attack(
        49,
        "finds what was left",
        """
import builtins, math, json
found = [hasattr(o, 'left') for o in (builtins, math, sys)]
return 'GOT state' if any(found) or math.sqrt(4) != 2 or len('ab') != 2 else ''
""",
        OK,
    ),
]

ATTACKS = [*RESOURCES, *SYSTEM, *REWARD]

WAVERING = [
    plain(50, "hash", "def f(c): return hash('a')", WAVERS),
    plain(50, "address", "def f(c): return id(f)", WAVERS),
    plain(50, "address in a text", "def f(c): return repr(object())", WAVERS),
    plain(50, "order of a set", "def f(c): return list({'a', 'b', 'c', 'd', 'e'})", WAVERS),
    plain(50, "clock", "import time\ndef f(c): return time.time()", WAVERS),
    plain(50, "fine clock", "import time\ndef f(c): return time.perf_counter_ns()", WAVERS),
    plain(50, "random", "import random\ndef f(c): return random.random()", WAVERS),
    plain(50, "random of the kernel", "import os\ndef f(c): return os.urandom(8)", WAVERS),
    plain(50, "counter", "calls = []\ndef f(c):\n    calls.append(c)\n    return len(calls)", WAVERS),
    plain(50, "process number is always the same", "import os\ndef f(c): return os.getpid() + os.getppid()", OK),
]
