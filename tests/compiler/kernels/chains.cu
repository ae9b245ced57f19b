// Loops of which others measured a step: products, sums and loads that each wait for the one before.

extern "C" __global__ void products(float* x, int count) {
  float d[4] = {x[0], x[1], x[2], x[3]};
  unsigned const a = __float_as_uint(x[4]), b = __float_as_uint(x[5]);
#pragma unroll 1
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int step = 0; step < 16; ++step)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, "
          "{%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a), "r"(b));
  x[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

extern "C" __global__ void sums(float* x, int count) {
  float sum = x[0], factor = x[1];
#pragma unroll 1
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int step = 0; step < 32; ++step) sum = fmaf(sum, factor, factor);
  x[threadIdx.x] = sum;
}

extern "C" __global__ void loads(int* x, int count) {
  __shared__ int next[32];
  next[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  int at = threadIdx.x;
#pragma unroll 1
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int step = 0; step < 32; ++step) at = *reinterpret_cast<int volatile*>(reinterpret_cast<char*>(next) + at);
  x[threadIdx.x] = at;
}
