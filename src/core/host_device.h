// Marks functions that compile for the CPU and, under nvcc, for the GPU as well.
#pragma once

#if defined(__CUDACC__)
#define TW_HD __host__ __device__
#else
#define TW_HD
#endif
