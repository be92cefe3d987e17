//go:build fault

package guard

import "processguard/go/internal/fault"

// One host goes through many faults, so they are not said by its environment.
func init() {
	registerSync("fault.set", func(a struct {
		Call  string `json:"call"`
		Trace string `json:"trace"`
	},
	) (any, error) {
		fault.Set(a.Call, a.Trace)
		return nil, nil
	})
}
