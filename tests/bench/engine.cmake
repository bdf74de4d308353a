equipoise_bench(bench_engine LIBS equipoise_graph SOURCES bench_engine.cpp)
if(TARGET equipoise_op)
  equipoise_bench(bench_op_engine LIBS equipoise_op SOURCES bench_op_engine.cpp)
endif()
