"""Filters the environment that our child processes inherit: only variables listed here. (pure but for os.environ)

This is an allow-list, because a list of secrets is never complete: GITHUB_PAT, DATABASE_URL and SLACK_WEBHOOK do not
look like keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from state import python
from workers.contract import (
    ATTEMPT_VARIABLE,
    BY_BUS,
    CONTROL_FD,
    CONTROL_FD_VARIABLE,
    LIFELINE_FD,
    LIFELINE_FD_VARIABLE,
    MAILBOX_VARIABLE,
    NEEDS_VARIABLE,
    RESTART_VARIABLE,
    TOKEN_VARIABLE,
    WARM_VARIABLE,
    Need,
)

MORE_VARIABLE = "LONGHAUL_PASS"
"""Comma-separated names of further variables that the user wants passed on."""
PROXIES = frozenset(
    {f"{kind}_proxy" for kind in ("http", "https", "all", "no")}
    | {f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "NO")}
)
NAMES = PROXIES | {
    # the machine and its user
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "LANG",
    "LANGUAGE",
    "LOCALE_ARCHIVE",
    "TZ",
    "TZDIR",
    "TMPDIR",
    "TMP",
    "TEMP",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "SOURCE_DATE_EPOCH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    # compilers that Triton and torch call
    "CC",
    "CXX",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "MAX_JOBS",
    # torchrun
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GPU_DEVICE_ORDINAL",
}
PREFIXES = (
    "LC_",
    "XDG_",
    "PYTHON",
    "LD_",
    "NIX_LD",
    "MALLOC_",
    "GLIBC_",
    "COVERAGE_",
    # devices and the libraries of their vendors
    "CUDA",
    "CUBLAS",
    "CUDNN",
    "NVIDIA_",
    "NVCC_",
    "NCCL_",
    "NVSHMEM_",
    "NVTE_",
    "HIP_",
    "ROCM_",
    "ROCR_",
    "HSA_",
    "MIOPEN_",
    "ZE_",
    "ONEAPI_",
    "SYCL_",
    # CPU threads and matrix libraries
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "DNNL_",
    "ONEDNN_",
    "ATEN_",
    "OPENBLAS_",
    "BLIS_",
    "NUMEXPR_",
    "NUMBA_",
    "RAYON_",
    # model libraries
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "ACCELERATE_",
    "BNB_",
    "VLLM_",
    "FLASHINFER_",
    # clusters
    "SLURM_",
    "RAY_",
    "GLOO_",
    "TP_",
    "UCX_",
    "FI_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "I_MPI_",
    "MPICH_",
)
SECRET_MARKS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH", "JWT", "WEBHOOK")
"""Excludes variables that match PREFIXES but hold secrets: HF_TOKEN, NVIDIA_API_KEY, SLURM_JWT."""
OURS = "LONGHAUL_"
OF_A_JOB = (MAILBOX_VARIABLE, RESTART_VARIABLE)
"""Variables of ours that belong to one job. A master or a command that runs inside a job must not hand them on."""
MARKS = (ATTEMPT_VARIABLE, TOKEN_VARIABLE, MAILBOX_VARIABLE)
"""Variables that say which worker a process is. Nothing that runs before it may change them."""
_LOGIN_IN_URL = re.compile(r"//[^/?#\s]*@")
"""`http://user:word@proxy`. Such a variable is passed on only if LONGHAUL_PASS names it."""


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that a worker gets."""
    asked = {name.strip() for name in environment.get(MORE_VARIABLE, "").split(",")}
    return {
        name: value
        for name, value in environment.items()
        if name in asked
        or (name.startswith(OURS) and name not in OF_A_JOB)
        or (_is_named(name) and not _LOGIN_IN_URL.search(value))
    }


def _is_named(name: str) -> bool:
    if name in NAMES:
        return True
    return name.startswith(PREFIXES) and not any(mark in name for mark in SECRET_MARKS)


def clean_environment(owner: str, token: str, warm: str, needs: Iterable[Need] = ()) -> dict[str, str]:
    """A worker's environment: the filtered variables of ours, plus its marks. warm: kind of worker to import first.
    needs: what that imports besides."""
    return {
        "CUDA_DEVICE_ORDER": BY_BUS,
        **python.finding_us(passed_on(os.environ)),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        ATTEMPT_VARIABLE: f"{owner}/{token}",
        TOKEN_VARIABLE: token,
        CONTROL_FD_VARIABLE: str(CONTROL_FD),
        LIFELINE_FD_VARIABLE: str(LIFELINE_FD),
        WARM_VARIABLE: warm,
        NEEDS_VARIABLE: ",".join(needs),
    }


def without_master(owner: str, token: str) -> dict[str, str]:
    """The environment of a process that has neither control socket nor lifeline."""
    found = clean_environment(owner, token, "")
    for name in (CONTROL_FD_VARIABLE, LIFELINE_FD_VARIABLE):
        del found[name]
    return found


def logins(beginnings: Iterable[str]) -> dict[str, str]:
    """Variables with a tracker's credentials, and the proxies to its server. beginnings: prefixes of their names."""
    found = tuple(beginnings)
    return {name: value for name, value in os.environ.items() if found and (name.startswith(found) or name in PROXIES)}
