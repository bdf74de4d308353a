equipoise_bench(bench_packing LIBS equipoise_policies SOURCES bench_packing.cpp)
if(TARGET equipoise_traces)
  equipoise_bench(bench_real_packing LIBS equipoise_traces SOURCES bench_real_packing.cpp)
endif()
