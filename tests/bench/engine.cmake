equipoise_bench(bench_engine LIBS equipoise_engine SOURCES bench_engine.cpp)
