//go:build !unix

package reap

import "os"

func openHostFile(path string) (*os.File, error) { return os.Open(path) }
