"""Kinds of runs that play games or learn given answers; see ``rlforge.kinds``."""
