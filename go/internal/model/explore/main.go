// Command explore runs the protocol's explorer and prints what each run found,
// with a shortest trace to everything that is wrong. Long runs have to be
// named. PG_STATES bounds a run.
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"processguard/go/internal/model"
)

func main() {
	most := 100_000_000
	if n, err := strconv.Atoi(os.Getenv("PG_STATES")); err == nil {
		most = n
	}
	for _, r := range model.Runs {
		if len(os.Args) == 1 && r.Long {
			continue
		}
		if len(os.Args) > 1 && !slices.Contains(os.Args[1:], r.Name) {
			continue
		}
		began := time.Now()
		res := model.Explore(r, model.Product, most)
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		fmt.Printf("%s %s: %d states, %d steps, %.1f s, %d MB\n", r.Name, r.Title, res.States, res.Steps, time.Since(began).Seconds(), ms.Sys>>20)
		if res.Cut {
			fmt.Println("  cut; not decided")
		}
		for what, n := range res.Found {
			fmt.Printf("  %s (%d)\n", what, n)
			for i, line := range res.Traces[what] {
				fmt.Printf("    %2d %s\n", i+1, line)
			}
		}
	}
}
