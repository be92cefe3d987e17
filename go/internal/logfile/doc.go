// Package logfile opens the log of a reaper, for one line at a time.
package logfile
